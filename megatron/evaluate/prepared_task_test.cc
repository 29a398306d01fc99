#include "megatron/evaluate/prepared_task.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/evaluate/task_report.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEod = 256;

absl::StatusOr<PreparedTask> Prepare(const std::string& name, const std::string& text,
                                     const PrepareOptions& options,
                                     const Tokenizer& tokenizer = ByteLevelTokenizer()) {
  MEGATRON_ASSIGN_OR_RETURN(const TaskInfo* const info, FindTask(name));
  MEGATRON_ASSIGN_OR_RETURN(const TaskExamples examples,
                            ParseExamples(*info, text, std::nullopt, 0));
  return PreparedTask::Create(*info, examples, tokenizer, options);
}

class TokenizerWithoutEnds : public ByteLevelTokenizer {
 public:
  const SpecialTokens& special() const override { return none_; }

 private:
  SpecialTokens none_;
};

PreparedTask Prepared(const std::string& name, const std::string& text,
                      const PrepareOptions& options) {
  absl::StatusOr<PreparedTask> task = Prepare(name, text, options);
  EXPECT_THAT(task, IsOk());
  return *std::move(task);
}

PrepareOptions Context(int64_t tokens, int64_t stride = 32) {
  PrepareOptions options;
  options.max_context = tokens;
  options.overlapping_eval = stride;
  return options;
}

// Shows a request as "before|scored", with ^ for the token that begins a text.
std::string Show(const ScoreRequest& request) {
  std::string text;
  for (size_t i = 0; i < request.tokens.size(); ++i) {
    if (static_cast<int64_t>(i) == request.first_scored) text += '|';
    text += request.tokens[i] == kEod ? '^' : static_cast<char>(request.tokens[i]);
  }
  return text;
}

std::vector<std::string> Show(const PreparedTask& task) {
  std::vector<std::string> shown;
  for (const ScoreRequest& request : task.requests()) shown.push_back(Show(request));
  return shown;
}

std::map<std::string, double> Values(const std::vector<TaskMetric>& metrics) {
  std::map<std::string, double> values;
  for (const TaskMetric& metric : metrics) values[metric.name] = metric.value;
  return values;
}

std::string Choice(const std::string& context, const std::vector<std::string>& endings, int gold) {
  return absl::StrCat("{\"ctx\": \"", context, "\", \"endings\": [\"",
                      absl::StrJoin(endings, "\", \""), "\"], \"label\": ", gold, "}\n");
}

TEST(PreparedTaskTest, SpaceAtTheContextsEndGoesToTheAnswer) {
  const PreparedTask task =
      Prepared("lambada_openai", "{\"text\": \"ab  cd\"}\n{\"text\": \"one\"}", Context(20));
  EXPECT_THAT(Show(task), ElementsAre("ab|  cd", "^| one"));
  EXPECT_EQ(task.num_cut(), 0);
}

TEST(PreparedTaskTest, ATextWithoutContextNeedsATokenThatItFollows) {
  const TokenizerWithoutEnds tokenizer;
  EXPECT_THAT(Prepare("lambada_openai", "{\"text\": \"ab  cd\"}", Context(20), tokenizer), IsOk());
  EXPECT_THAT(Prepare("lambada_openai", "{\"text\": \"ab  cd\"}\n{\"text\": \"one\"}", Context(20),
                      tokenizer),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("line 2: "), HasSubstr("the tokenizer has neither"))));
  EXPECT_THAT(Prepare("bits_per_byte", "{\"text\": \"ab\"}", Context(4), tokenizer),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the tokenizer has neither")));
}

TEST(PreparedTaskTest, MegatronsLambada) {
  const std::string text = "{\"text\": \"ab  cd \"}";
  EXPECT_THAT(Show(Prepared("lambada", text, Context(20))), ElementsAre("ab  cd| "));
  EXPECT_THAT(Show(Prepared("lambada_strict", text, Context(20))), ElementsAre("ab| cd"));
  EXPECT_THAT(Show(Prepared("lambada_strict", "{\"text\": \"ab\"}", Context(20))),
              ElementsAre("^| ab"));
}

TEST(PreparedTaskTest, LongContextsLoseTheirFirstTokens) {
  const PreparedTask task = Prepared("lambada_openai", "{\"text\": \"0123456789 cd\"}", Context(6));
  EXPECT_THAT(Show(task), ElementsAre("6789| cd"));
  EXPECT_EQ(task.num_cut(), 1);
  EXPECT_THAT(Show(Prepared("lambada_openai", "{\"text\": \"789 cd\"}", Context(6))),
              ElementsAre("789| cd"));
}

TEST(PreparedTaskTest, AnAnswerThatIsLongerThanTheContextIsRefusedByLine) {
  EXPECT_THAT(
      Prepare("lambada_openai", "{\"text\": \"a b\"}\n{\"text\": \"a bcdefg\"}", Context(6)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("line 2: "), HasSubstr("7 tokens"), HasSubstr("context 6"))));
  EXPECT_THAT(Prepare("lambada_openai", "{\"text\": \"a bcdef\"}", Context(6)), IsOk());
}

// Every token is scored once, and the last window reaches back as far as lm_eval's.
TEST(PreparedTaskTest, DocumentsComeInLmEvalsWindows) {
  EXPECT_THAT(Show(Prepared("bits_per_byte", "{\"text\": \"0123456789\"}", Context(4))),
              ElementsAre("^|0123", "3|4567", "567|89"));
  EXPECT_THAT(Show(Prepared("bits_per_byte", "{\"text\": \"0123\"}", Context(4))),
              ElementsAre("^|0123"));
  const PreparedTask two =
      Prepared("bits_per_byte", "{\"text\": \"\"}\n{\"text\": \"a\"}", Context(4));
  EXPECT_THAT(Show(two), ElementsAre("^|a"));
  EXPECT_EQ(two.num_examples(), 2);
}

// Megatron's data set: window i begins at token i * stride, and scores its last `stride` tokens.
TEST(PreparedTaskTest, OneTextComesInMegatronsWindows) {
  EXPECT_THAT(Show(Prepared("wikitext103", "0123456789", Context(4, 2))),
              ElementsAre("0|1234", "234|56", "456|78", "678|9"));
  EXPECT_THAT(Show(Prepared("wikitext103", "0123456789", Context(4, 4))),
              ElementsAre("0|1234", "4|5678", "8|9"));
  EXPECT_THAT(Show(Prepared("wikitext103", "0123456789", Context(4, 9))),
              ElementsAre("0|1234", "4|5678", "8|9"));
  EXPECT_THAT(Show(Prepared("wikitext103", "0123", Context(4, 2))), ElementsAre("0|123"));
  PrepareOptions two = Context(4, 2);
  two.max_windows = 2;
  EXPECT_THAT(Show(Prepared("wikitext103", "0123456789", two)), ElementsAre("0|1234", "234|56"));
  EXPECT_THAT(Prepare("wikitext103", "0", Context(4, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PreparedTaskTest, ChoicesAreJudgedBySumAndByLength) {
  const std::string lines =
      absl::StrCat(R"({"goal": "g", "sol1": "a", "sol2": "bbbb", "label": 0})", "\n",
                   R"({"goal": "h", "sol1": "a", "sol2": "bbbb", "label": 1})", "\n",
                   R"({"goal": "i", "sol1": "a", "sol2": "b", "label": 0})", "\n");
  const PreparedTask task = Prepared("piqa", lines, Context(40));
  ASSERT_EQ(task.requests().size(), 6u);
  EXPECT_EQ(Show(task.requests()[3]), "Question: h\nAnswer:| bbbb");
  // By sum the first answer is chosen each time; by length the second, but the first of equals.
  const std::vector<RequestScore> scores = {{-2, false}, {-4, false}, {-2, false},
                                            {-4, false}, {-3, false}, {-3, false}};
  const std::vector<TaskMetric> metrics = task.Metrics(scores);
  EXPECT_THAT(Values(metrics),
              ElementsAre(std::pair("acc", 2.0 / 3), std::pair("acc_norm", 2.0 / 3)));
  EXPECT_TRUE(metrics[0].higher_is_better);
  // The mean of {1, 0, 1} has a standard error of sqrt(1/3) / sqrt(3).
  EXPECT_NEAR(*metrics[0].standard_error, 1.0 / 3, 1e-12);
}

TEST(PreparedTaskTest, LlmcDividesByTokens) {
  const PreparedTask task = Prepared("hellaswag_llmc", Choice("c", {"a", "bbbbb"}, 0), Context(40));
  EXPECT_THAT(Show(task), ElementsAre("c| a", "c| bbbbb"));
  // There are 2 and 6 tokens; by 1 and 5 characters the second would be chosen.
  const auto metrics = task.Metrics(std::vector<RequestScore>{{-2, false}, {-8, false}});
  EXPECT_EQ(Values(metrics).at("acc"), 1);
  EXPECT_EQ(Values(metrics).at("acc_norm"), 1);
  EXPECT_FALSE(metrics[0].standard_error.has_value());
}

TEST(PreparedTaskTest, WordsAreRightWhereTheyAreGreedy) {
  const PreparedTask task =
      Prepared("lambada_strict", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}", Context(40));
  const auto values = Values(task.Metrics(std::vector<RequestScore>{{-1, true}, {-2, false}}));
  EXPECT_EQ(values.at("acc"), 0.5);
  EXPECT_NEAR(values.at("perplexity"), std::exp(1.5), 1e-12);
}

TEST(PreparedTaskTest, DocumentsAreDividedByBytesAndWords) {
  const PreparedTask task =
      Prepared("bits_per_byte", "{\"text\": \"a bc\"}\n{\"text\": \"d\u00e9\"}", Context(40));
  const auto values = Values(task.Metrics(std::vector<RequestScore>{{-3, true}, {-4, true}}));
  EXPECT_NEAR(values.at("bits_per_byte"), 7 / (7 * std::log(2.0)), 1e-12);
  EXPECT_NEAR(values.at("byte_perplexity"), std::exp(1.0), 1e-12);
  EXPECT_NEAR(values.at("word_perplexity"), std::exp(7.0 / 3), 1e-12);
}

TEST(PreparedTaskTest, PerplexityIsAdjustedByPublishedTokens) {
  // 10 tokens of 5 published ones, "0", "2", "4", "6" and "89".
  const PreparedTask task = Prepared("wikitext103", "0 2 4 6 89", Context(4, 4));
  const auto values =
      Values(task.Metrics(std::vector<RequestScore>{{-4, true}, {-4, true}, {-1, true}}));
  EXPECT_NEAR(values.at("loss"), 1, 1e-12);
  EXPECT_NEAR(values.at("ppl"), std::exp(1.0), 1e-12);
  EXPECT_NEAR(values.at("token_ratio"), 9.0 / 4, 1e-12);
  EXPECT_NEAR(values.at("adjusted_ppl"), std::exp(9.0 / 4), 1e-12);
  const auto bad =
      Values(task.Metrics(std::vector<RequestScore>{{-400, true}, {-400, true}, {-1, true}}));
  EXPECT_EQ(bad.at("ppl"), std::exp(20.0));
}

TEST(TaskReportTest, ATableAndLmEvalsResults) {
  const TaskResult piqa = {"piqa",
                           "a/valid.jsonl",
                           12,
                           1,
                           {{"acc", 0.25, 0.125, true}, {"perplexity", HUGE_VAL, {}, false}}};
  EXPECT_EQ(FormatTaskTable({piqa}),
            "task  examples  metric                value  standard error\n"
            "piqa        12  acc                  0.2500  0.1250\n"
            "piqa        12  perplexity              inf\n"
            "piqa: 1 context lost first tokens, to fit into the model's\n");
  const auto json = nlohmann::json::parse(LmEvalJson({"run/iter_0000003", 3, 64}, {piqa}));
  EXPECT_EQ(json["results"]["piqa"]["acc,none"], 0.25);
  EXPECT_EQ(json["results"]["piqa"]["acc_stderr,none"], 0.125);
  EXPECT_EQ(json["results"]["piqa"]["perplexity_stderr,none"], "N/A");
  EXPECT_TRUE(json["results"]["piqa"]["perplexity,none"].is_null());
  EXPECT_EQ(json["n-samples"]["piqa"]["effective"], 12);
  EXPECT_EQ(json["higher_is_better"]["piqa"]["perplexity"], false);
  EXPECT_EQ(json["config"]["model_args"]["checkpoint"], "run/iter_0000003");
  EXPECT_EQ(json["max_length"], 64);
}

}  // namespace
}  // namespace megatron
