#include "megatron/evaluate/prepared_task.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/evaluate/python_text.h"

namespace megatron {
namespace {

using Tokens = std::vector<int32_t>;

// As in Megatron, an exponent has an end.
double CappedExp(double value) { return std::exp(std::min(20.0, value)); }

// The mean of shares, with its standard error as lm_eval computes it.
TaskMetric MeanOf(const std::string& name, const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  TaskMetric metric{name, sum / count, std::nullopt, /*higher_is_better=*/true};
  if (values.size() < 2) return metric;
  double squares = 0;
  for (const double value : values) squares += (value - metric.value) * (value - metric.value);
  metric.standard_error = std::sqrt(squares / (count - 1)) / std::sqrt(count);
  return metric;
}

TaskMetric LowerIsBetter(const char* name, double value) {
  return {name, value, std::nullopt, /*higher_is_better=*/false};
}

// Returns the number of the greatest; of several, the first.
int64_t Greatest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

}  // namespace

// Turns texts into requests.
class PreparedTask::Builder {
 public:
  Builder(const Tokenizer& tokenizer, const PrepareOptions& options, PreparedTask* task)
      : tokenizer_(tokenizer), options_(options), task_(task) {}

  absl::Status AddAnswers(const Example& example) {
    Group& group = NewGroup(example);
    for (size_t i = 0; i < example.answers.size(); ++i) {
      Tokens context, answer;
      MEGATRON_RETURN_IF_ERROR(
          EncodeAnswer(example.context, example.answers[i], &context, &answer));
      if (answer.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the tokenizer makes no tokens of '", example.answers[i], "'"));
      }
      if (task_->info_->normalizes_by_tokens)
        group.lengths.push_back(static_cast<double>(answer.size()));
      MEGATRON_RETURN_IF_ERROR(AddRequest(context, answer));
    }
    if (group.lengths.empty()) group.lengths.assign(example.lengths.begin(), example.lengths.end());
    group.end = task_->requests_.size();
    return absl::OkStatus();
  }

  // A document's tokens in windows that follow one another. The last one reaches back as far as the
  // context does.
  absl::Status AddDocument(const Example& example) {
    Group& group = NewGroup(example);
    Tokens tokens;
    MEGATRON_RETURN_IF_ERROR(AddBeginning(&tokens));
    MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(example.context, &tokens));
    const int64_t size = static_cast<int64_t>(tokens.size());
    for (int64_t scored = 1; scored < size;) {
      const int64_t end = std::min(size, scored + options_.max_context);
      Add(tokens, std::max<int64_t>(0, end - options_.max_context - 1), scored, end);
      scored = end;
    }
    group.end = task_->requests_.size();
    return absl::OkStatus();
  }

  // Megatron's windows over one text, each of which moves on by overlapping_eval tokens and scores
  // that many; the first one scores all of its own.
  absl::Status AddText(const Example& example, int64_t original_tokens) {
    Tokens tokens;
    MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(example.context, &tokens));
    const int64_t size = static_cast<int64_t>(tokens.size());
    if (size < 2) return absl::InvalidArgumentError("the text has fewer than two tokens");
    const int64_t stride = std::min(options_.overlapping_eval, options_.max_context);
    for (int64_t begin = 0, scored = 1; scored < size; begin += stride) {
      if (options_.max_windows > 0 && task_->num_examples() == options_.max_windows) break;
      Group& group = NewGroup(example);
      const int64_t end = std::min(size, begin + options_.max_context + 1);
      Add(tokens, begin, scored, end);
      scored = end;
      group.end = task_->requests_.size();
    }
    task_->token_ratio_ = static_cast<double>(size - 1) /
                          static_cast<double>(std::max<int64_t>(1, original_tokens - 1));
    return absl::OkStatus();
  }

 private:
  Group& NewGroup(const Example& example) {
    Group& group = task_->groups_.emplace_back();
    group.begin = task_->requests_.size();
    group.gold = example.gold;
    group.num_bytes = static_cast<double>(example.num_bytes);
    group.num_words = static_cast<double>(example.num_words);
    return group;
  }

  // The token that a text without context follows; negative if there is none.
  int32_t Beginning() const {
    const SpecialTokens& special = tokenizer_.special();
    return special.bos >= 0 ? special.bos : special.eod;
  }

  absl::Status AddBeginning(Tokens* tokens) const {
    if (Beginning() < 0) {
      return absl::InvalidArgumentError(
          "a text without context follows BOS or EOD, and the tokenizer has neither: this task "
          "needs another tokenizer");
    }
    tokens->push_back(Beginning());
    return absl::OkStatus();
  }

  absl::Status EncodeAnswer(absl::string_view context, const std::string& answer, Tokens* before,
                            Tokens* tokens) const {
    switch (task_->info_->answer_tokens) {
      case AnswerTokens::kOfWhole:
        return EncodeWhole(context, answer, before, tokens);
      case AnswerTokens::kApart:
        MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(context, before));
        return tokenizer_.Encode(answer, tokens);
      case AnswerTokens::kLastToken:
        MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(context, before));
        if (before->empty()) return absl::OkStatus();
        tokens->push_back(before->back());
        before->pop_back();
        return absl::OkStatus();
    }
    LOG(FATAL) << "no such way to encode answers";
  }

  // A model whose tokenizer puts tokens before each text has learned to see them there.
  absl::Status EncodeWhole(absl::string_view context, const std::string& answer, Tokens* before,
                           Tokens* tokens) const {
    if (context.empty()) {
      MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(answer, tokens));
      if (!tokens->empty() && tokens->front() == Beginning() && tokens->size() > 1) {
        before->push_back(tokens->front());
        tokens->erase(tokens->begin());
      }
      return absl::OkStatus();
    }
    const absl::string_view stripped = StripTrailingPythonSpace(context);
    Tokens whole;
    MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(stripped, before));
    MEGATRON_RETURN_IF_ERROR(tokenizer_.Encode(absl::StrCat(context, answer), &whole));
    const size_t begin = std::min(before->size(), whole.size());
    tokens->assign(whole.begin() + static_cast<ptrdiff_t>(begin), whole.end());
    whole.resize(begin);
    *before = tokenizer_.special().before;
    before->insert(before->end(), whole.begin(), whole.end());
    return absl::OkStatus();
  }

  absl::Status AddRequest(Tokens context, const Tokens& answer) {
    const int64_t size = static_cast<int64_t>(answer.size());
    if (size > options_.max_context) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an answer has ", size, " tokens, and the model's context ", options_.max_context));
    }
    if (context.empty()) {
      MEGATRON_RETURN_IF_ERROR(AddBeginning(&context));
    }
    context.insert(context.end(), answer.begin(), answer.end());
    const int64_t all = static_cast<int64_t>(context.size());
    const int64_t begin = std::max<int64_t>(0, all - options_.max_context - 1);
    if (begin > 0) ++task_->num_cut_;
    Add(context, begin, all - size, all);
    return absl::OkStatus();
  }

  // Adds tokens [begin, end), of which those from `scored` on are scored.
  void Add(const Tokens& tokens, int64_t begin, int64_t scored, int64_t end) {
    ScoreRequest& request = task_->requests_.emplace_back();
    request.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    request.first_scored = scored - begin;
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  PreparedTask* const task_;
};

absl::StatusOr<PreparedTask> PreparedTask::Create(const TaskInfo& info,
                                                  const TaskExamples& examples,
                                                  const Tokenizer& tokenizer,
                                                  const PrepareOptions& options) {
  CHECK_GE(options.max_context, 1);
  CHECK_GE(options.overlapping_eval, 1);
  PreparedTask task(info);
  Builder builder(tokenizer, options, &task);
  for (const Example& example : examples.examples) {
    const absl::Status added = info.form == TaskForm::kDocuments ? builder.AddDocument(example)
                               : info.form == TaskForm::kOneText
                                   ? builder.AddText(example, examples.original_tokens)
                                   : builder.AddAnswers(example);
    MEGATRON_RETURN_IF_ERROR(added, _.SetPrepend() << "line " << example.line << ": ");
  }
  return task;
}

std::vector<TaskMetric> PreparedTask::Metrics(absl::Span<const RequestScore> scores) const {
  CHECK_EQ(scores.size(), requests_.size());
  switch (info_->form) {
    case TaskForm::kChoice:
      return ChoiceMetrics(scores);
    case TaskForm::kWord:
      return WordMetrics(scores);
    case TaskForm::kDocuments:
      return DocumentMetrics(scores);
    case TaskForm::kOneText:
      return TextMetrics(scores);
  }
  LOG(FATAL) << "no such form";
}

std::vector<TaskMetric> PreparedTask::ChoiceMetrics(absl::Span<const RequestScore> scores) const {
  std::vector<double> right, right_by_length;
  for (const Group& group : groups_) {
    std::vector<double> sums, means;
    for (size_t i = group.begin; i < group.end; ++i) {
      sums.push_back(scores[i].logprob);
      means.push_back(scores[i].logprob / group.lengths[i - group.begin]);
    }
    right.push_back(Greatest(sums) == group.gold ? 1 : 0);
    right_by_length.push_back(Greatest(means) == group.gold ? 1 : 0);
  }
  return {MeanOf("acc", right), MeanOf("acc_norm", right_by_length)};
}

std::vector<TaskMetric> PreparedTask::WordMetrics(absl::Span<const RequestScore> scores) const {
  std::vector<double> right;
  double logprob = 0;
  for (const RequestScore& score : scores) {
    right.push_back(score.is_greedy ? 1 : 0);
    logprob += score.logprob;
  }
  const auto count = static_cast<double>(scores.size());
  return {MeanOf("acc", right), LowerIsBetter("perplexity", std::exp(-logprob / count))};
}

std::vector<TaskMetric> PreparedTask::DocumentMetrics(absl::Span<const RequestScore> scores) const {
  double logprob = 0, bytes = 0, words = 0;
  for (const RequestScore& score : scores) logprob += score.logprob;
  for (const Group& group : groups_) {
    bytes += group.num_bytes;
    words += group.num_words;
  }
  return {LowerIsBetter("bits_per_byte", -logprob / (bytes * std::log(2.0))),
          LowerIsBetter("byte_perplexity", std::exp(-logprob / bytes)),
          LowerIsBetter("word_perplexity", std::exp(-logprob / words))};
}

std::vector<TaskMetric> PreparedTask::TextMetrics(absl::Span<const RequestScore> scores) const {
  double logprob = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    logprob += scores[i].logprob;
    tokens += static_cast<int64_t>(requests_[i].tokens.size()) - requests_[i].first_scored;
  }
  const double loss = -logprob / static_cast<double>(tokens);
  return {LowerIsBetter("loss", loss), LowerIsBetter("ppl", CappedExp(loss)),
          LowerIsBetter("adjusted_ppl", CappedExp(loss * token_ratio_)),
          LowerIsBetter("token_ratio", token_ratio_)};
}

}  // namespace megatron
