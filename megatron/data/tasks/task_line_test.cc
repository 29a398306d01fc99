#include "megatron/data/tasks/task_line.h"

#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<TaskExample> ExamplesOf(LabelledTask task, absl::string_view line) {
  std::vector<TaskExample> examples;
  EXPECT_THAT(AppendTaskExamples(task, line, &examples), IsOk());
  return examples;
}

TEST(TaskLineTest, MnliHasTextsInColumnsEightAndNineAndTheLabelInTheLast) {
  const std::pair<const char*, int> labels[] = {
      {"contradiction", 0}, {"entailment", 1}, {"neutral", 2}};
  for (const auto& [label, number] : labels) {
    const auto examples = ExamplesOf(
        LabelledTask::kMnli,
        std::string("0\t1\t2\t3\t4\t5\t6\t7\t Tom  had a lamp . It shone .\tHe had one.\tx\t") +
            label + "\r");
    ASSERT_EQ(examples.size(), 1u);
    EXPECT_THAT(examples[0].first, ElementsAre("Tom had a lamp. It shone ."));
    EXPECT_EQ(examples[0].second, "He had one.");
    EXPECT_EQ(examples[0].label, number);
  }
}

TEST(TaskLineTest, QqpLeavesOutLinesOfOtherColumnsAndEmptyQuestions) {
  const auto examples = ExamplesOf(LabelledTask::kQqp, "7\t1\t2\tWho is it?\tWho was it?\t1\n");
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_THAT(examples[0].first, ElementsAre("Who is it?"));
  EXPECT_EQ(examples[0].second, "Who was it?");
  EXPECT_EQ(examples[0].label, 1);
  EXPECT_EQ(ExamplesOf(LabelledTask::kQqp, "7\t1\t2\tWho?\tWhat?\t0")[0].label, 0);
  EXPECT_THAT(ExamplesOf(LabelledTask::kQqp, "7\t1\t2\tWho is it?\t1"), IsEmpty());
  EXPECT_THAT(ExamplesOf(LabelledTask::kQqp, "7\t1\t2\t \tWho was it?\t1"), IsEmpty());
}

TEST(TaskLineTest, RaceHasFourTextsForEachQuestionOfAnArticle) {
  const auto examples =
      ExamplesOf(LabelledTask::kRace,
                 R"({"article": "Tom  had a lamp.", "questions": ["Who had it?", "He had a _ ."],)"
                 R"( "options": [["Tom", "Ana", "Max", "Zoe"], ["bell", "lamp", "coin", "ring"]],)"
                 R"( "answers": ["A", "B"], "id": "high1.txt"})");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_THAT(examples[0].first, ElementsAre("Who had it? Tom", "Who had it? Ana",
                                             "Who had it? Max", "Who had it? Zoe"));
  EXPECT_THAT(examples[1].first, ElementsAre("He had a bell .", "He had a lamp .",
                                             "He had a coin .", "He had a ring ."));
  EXPECT_EQ(examples[0].second, "Tom had a lamp.");
  EXPECT_EQ(examples[1].second, "Tom had a lamp.");
  EXPECT_EQ(examples[0].label, 0);
  EXPECT_EQ(examples[1].label, 1);
}

TEST(TaskLineTest, TextToTextKeepsTextsAsTheyAre) {
  const auto examples =
      ExamplesOf(LabelledTask::kTextToText, R"({"inputs": "copy:  a . b", "targets": " a . b"})");
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_THAT(examples[0].first, ElementsAre("copy:  a . b"));
  EXPECT_EQ(examples[0].second, " a . b");
}

TEST(TaskLineTest, WrongLinesSayWhatIsWrong) {
  struct Case {
    LabelledTask task;
    const char *line, *problem;
  };
  for (const Case& each : std::vector<Case>{
           {LabelledTask::kMnli, "1\t2\t3", "has 3 columns"},
           {LabelledTask::kMnli, "0\t1\t2\t3\t4\t5\t6\t7\ta\tb\tno",
            "the label in the last column"},
           {LabelledTask::kMnli, "0\t1\t2\t3\t4\t5\t6\t7\ta\t \tneutral", "an empty text"},
           {LabelledTask::kMnli, "\t\t\t\t\t\t\t\t\t\t\t", "has tabs and blanks alone"},
           {LabelledTask::kQqp, "\t\t\t\t\t\r", "has tabs and blanks alone"},
           {LabelledTask::kQqp, "7\t1\t2\ta\tb\t2", "is '2', and not 0 or 1"},
           {LabelledTask::kRace, "[]", "is no JSON object"},
           {LabelledTask::kRace, R"({"article": 1})", "needs a text \"article\""},
           {LabelledTask::kRace,
            R"({"article": "a", "questions": ["q"], "options": [["a"]],)"
            R"( "answers": ["A"]})",
            "question 1 is no text, or has not four texts"},
           {LabelledTask::kRace,
            R"({"article": "a", "questions": ["q"], "options": [],)"
            R"( "answers": ["A"]})",
            "has 1 questions, options for 0 and 1 answers"},
           {LabelledTask::kRace,
            R"({"article": "a", "questions": ["q"], "options": [["a", "b", "c", "d"]],)"
            R"( "answers": ["E"]})",
            "the answer to question 1 is 'E'"},
           {LabelledTask::kRace,
            R"({"article": "a", "questions": ["q"], "options": [["a", "b", "c", "d"]],)"
            R"( "answers": [1]})",
            "the answer to question 1 is no text"},
           {LabelledTask::kTextToText, R"({"inputs": "a"})", "needs a text \"targets\""},
           {LabelledTask::kTextToText, R"({"inputs": "a", "targets": ""})", "has empty"},
           {LabelledTask::kTextToText, "a\tb", "is no JSON object"}}) {
    std::vector<TaskExample> examples;
    EXPECT_THAT(AppendTaskExamples(each.task, each.line, &examples),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(each.problem)))
        << each.line;
    EXPECT_THAT(examples, IsEmpty());
  }
}

TEST(TaskLineTest, FilesWithoutLabelsAreRefusedByTheirHeader) {
  EXPECT_THAT(CheckTaskHeader(LabelledTask::kMnli, "a\tb\tc\td\te\tf\tg\th\ti\tj"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("test file without labels")));
  EXPECT_THAT(CheckTaskHeader(LabelledTask::kQqp, "id\tquestion1\tquestion2"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 3 columns")));
  EXPECT_THAT(CheckTaskHeader(LabelledTask::kQqp, "id\ta\tb\tc\td\tlabel"), IsOk());
  EXPECT_THAT(CheckTaskHeader(LabelledTask::kMnli, "a\tb\tc\td\te\tf\tg\th\ti\tj\tk"), IsOk());
}

TEST(TaskLineTest, LinesOfMnliHaveTheColumnsOfTheHeader) {
  const auto check = [](absl::string_view line) {
    return CheckTaskColumns(LabelledTask::kMnli, "a\tb\tc\r", line);
  };
  EXPECT_THAT(check("1\t2\t3"), IsOk());
  EXPECT_THAT(check("1\t2\t\r"), IsOk());
  EXPECT_THAT(check("1\t2"), StatusIs(absl::StatusCode::kDataLoss,
                                      HasSubstr("has 2 columns, and the header 3: a column is")));
  EXPECT_THAT(check("1\t2\tx\t3"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 4 columns, and the header 3")));
  EXPECT_THAT(check("1\t2\t3\t\r"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(CheckTaskColumns(LabelledTask::kQqp, "a", "1\t2"), IsOk());
}

TEST(TaskLineTest, LinesWithoutExampleTellWhy) {
  EXPECT_EQ(WhyNoExample(LabelledTask::kQqp, "7\t1\t2\tWho is it?\t1"),
            "has 5 columns with tabs between them, and QQP has 6");
  EXPECT_EQ(WhyNoExample(LabelledTask::kQqp, "7\t1\t2\t \tWho was it?\t1"),
            "has an empty question");
  EXPECT_EQ(WhyNoExample(LabelledTask::kRace,
                         R"({"article": "a", "questions": [], "options": [], "answers": []})"),
            "has no question");
}

}  // namespace
}  // namespace megatron
