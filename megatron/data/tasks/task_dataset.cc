#include "megatron/data/tasks/task_dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {
namespace {

constexpr int64_t kShortestSequence = 3;

absl::Status CheckSpecial(LabelledTask task, const SpecialTokens& special) {
  const bool is_pair = task == LabelledTask::kTextToText;
  const char* missing = nullptr;
  if (is_pair) {
    if (special.eos < 0) missing = "end of text (EOS)";
    if (special.bos < 0 && special.pad < 0) missing = "beginning of text (BOS), and no padding";
  } else {
    if (special.sep < 0) missing = "[SEP]";
    if (special.cls < 0) missing = "[CLS]";
  }
  if (missing == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.tokenizer_type: the vocabulary has no ",
                                                 missing,
                                                 ", which samples of data.task begin or end with"));
}

void AppendTo(LabelledExamples::Tokens tokens, std::vector<int32_t>* out) {
  out->insert(out->end(), tokens.begin(), tokens.end());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TaskDataset>> TaskDataset::Create(
    std::shared_ptr<const LabelledExamples> examples, const SpecialTokens& special,
    const TaskDatasetOptions& options) {
  const SequenceRange range = options.range;
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= examples->size());
  if (range.size() == 0) return absl::InvalidArgumentError("there is no example");
  const absl::Status complete = CheckSpecial(examples->task(), special);
  if (!complete.ok()) return complete;
  return std::unique_ptr<TaskDataset>(new TaskDataset(std::move(examples), special, options));
}

TaskDataset::TaskDataset(std::shared_ptr<const LabelledExamples> examples,
                         const SpecialTokens& special, const TaskDatasetOptions& options)
    : examples_(std::move(examples)),
      special_(special),
      options_(options),
      order_(options.range.size(), options.seed),
      size_(std::max(options.range.size(), options.num_samples.value_or(0))) {
  const bool is_pair = examples_->task() == LabelledTask::kTextToText;
  CHECK(is_pair ? options.seq_length > 0 && options.decoder_seq_length > 0
                : options.seq_length >= kShortestSequence);
}

void TaskDataset::AppendSequence(LabelledExamples::Tokens first, LabelledExamples::Tokens second,
                                 Sample* sample) const {
  const size_t begin = sample->tokens.size();
  sample->document_starts.push_back(static_cast<int32_t>(begin));
  sample->tokens.push_back(special_.cls);
  AppendTo(first, &sample->tokens);
  sample->tokens.push_back(special_.sep);
  const size_t second_begin = sample->tokens.size();
  AppendTo(second, &sample->tokens);
  const size_t most = begin + static_cast<size_t>(options_.seq_length) - 1;
  if (sample->tokens.size() > most) sample->tokens.resize(most);
  sample->types.resize(std::min(second_begin, sample->tokens.size()), 0);
  sample->tokens.push_back(special_.sep);
  sample->types.resize(sample->tokens.size(), 1);
  sample->positions.resize(sample->tokens.size());
  std::iota(sample->positions.begin() + static_cast<int64_t>(begin), sample->positions.end(), 0);
}

void TaskDataset::SetPair(LabelledExamples::Tokens first, LabelledExamples::Tokens second,
                          Sample* sample) const {
  const auto cut = [](LabelledExamples::Tokens tokens, int64_t most) {
    return tokens.subspan(0, std::min(tokens.size(), static_cast<size_t>(most)));
  };
  AppendTo(cut(first, options_.seq_length - 1), &sample->encoder_tokens);
  sample->encoder_tokens.push_back(special_.eos);
  AppendTo(cut(second, options_.decoder_seq_length - 1), &sample->labels);
  sample->labels.push_back(special_.eos);
  sample->tokens.push_back(special_.bos >= 0 ? special_.bos : special_.pad);
  sample->tokens.insert(sample->tokens.end(), sample->labels.begin(), sample->labels.end() - 1);
  sample->document_starts.push_back(0);
  sample->loss_mask.assign(sample->labels.size(), 1);
  sample->spans.assign(sample->labels.size(), 0);
  sample->positions.resize(sample->labels.size());
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
}

absl::Status TaskDataset::Get(int64_t index, Sample* sample) const {
  if (index < 0 || index >= size_) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, " does not exist; the dataset has ", size_, " samples"));
  }
  const int64_t example = options_.range.begin + order_.SampleOf(index);
  for (std::vector<int32_t>* part :
       {&sample->tokens, &sample->labels, &sample->types, &sample->document_starts,
        &sample->positions, &sample->encoder_tokens, &sample->spans})
    part->clear();
  sample->loss_mask.clear();
  sample->sequence_weight = 1;
  if (examples_->task() == LabelledTask::kTextToText) {
    SetPair(examples_->First(example, 0), examples_->Second(example), sample);
    return absl::OkStatus();
  }
  for (int64_t choice = 0; choice < LabelsOf(examples_->task()).choices; ++choice)
    AppendSequence(examples_->First(example, choice), examples_->Second(example), sample);
  sample->sequence_class = examples_->Label(example);
  sample->labels.assign(sample->tokens.size(), -1);
  sample->loss_mask.assign(sample->tokens.size(), 0);
  return absl::OkStatus();
}

}  // namespace megatron
