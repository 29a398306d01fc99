#include "megatron/evaluate/task_examples.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<TaskExamples> Parse(const std::string& task, absl::string_view text,
                                   std::optional<absl::string_view> labels = std::nullopt,
                                   int64_t limit = 0) {
  MEGATRON_ASSIGN_OR_RETURN(const TaskInfo* const info, FindTask(task));
  return ParseExamples(*info, text, labels, limit);
}

Example ParseOne(const std::string& task, absl::string_view line) {
  const absl::StatusOr<TaskExamples> parsed = Parse(task, line);
  EXPECT_THAT(parsed, IsOk()) << line;
  return parsed.ok() ? parsed->examples.at(0) : Example();
}

TEST(TaskExamplesTest, AnUnknownTaskIsToldAllNames) {
  EXPECT_THAT(FindTask("hellaswage"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'hellaswage'"), HasSubstr("hellaswag_llmc, arc_easy"))));
}

// The published line and what lm_eval makes of it.
TEST(TaskExamplesTest, Hellaswag) {
  const Example example = ParseOne(
      "hellaswag",
      R"({"ind": 24, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting. [header] x",)"
      R"( "ctx_b": "he IS", "ctx": "A man is sitting. he", "split": "val", "label": 3, "endings":)"
      R"( ["is using wrap [title] to", " is  ripping.", "is holding [a] cube", "st\u00e9rs."]})");
  EXPECT_EQ(example.context, "Roof shingle removal: A man is sitting. x He is");
  EXPECT_THAT(example.answers, ElementsAre(" is using wrap. to", " is ripping.", " is holding cube",
                                           " st\u00e9rs."));
  EXPECT_THAT(example.lengths, ElementsAre(17, 11, 15, 6));
  EXPECT_EQ(example.gold, 3);
  EXPECT_EQ(example.line, 1);
  // Hugging Face's files have the label as text.
  EXPECT_EQ(
      ParseOne("hellaswag", R"({"activity_label": "", "ctx_a": "", "ctx_b": "", "label": "1",)"
                            R"( "endings": ["[a\nb] c [d]", "x [[y] z]  w", "u", "v"]})")
          .answers[0],
      " [a\nb] c ");
}

TEST(TaskExamplesTest, HellaswagOfLlmcIsAsPublished) {
  const Example example = ParseOne(
      "hellaswag_llmc", R"({"ctx": "He [title] sits", "label": 0, "endings": ["a  [b].", "c"]})");
  EXPECT_EQ(example.context, "He [title] sits");
  EXPECT_THAT(example.answers, ElementsAre(" a  [b].", " c"));
}

TEST(TaskExamplesTest, ArcAsPublishedAndAsHuggingFaceHasIt) {
  for (const char* line :
       {R"({"id": "1", "question": {"stem": "Why?", "choices": [{"text": "a", "label": "1"},)"
        R"( {"text": "bc", "label": "2"}, {"text": "d", "label": "3"}]}, "answerKey": "2"})",
        R"({"id": "1", "question": "Why?", "choices": {"text": ["a", "bc", "d"], "label":)"
        R"( ["A", "B", "C"]}, "answerKey": "B"})"}) {
    const Example example = ParseOne("arc_challenge", line);
    EXPECT_EQ(example.context, "Question: Why?\nAnswer:");
    EXPECT_THAT(example.answers, ElementsAre(" a", " bc", " d"));
    EXPECT_EQ(example.gold, 1);
  }
}

TEST(TaskExamplesTest, PiqaHasItsLabelsBesideIt) {
  MemoryFileSystem disk;
  const std::string lines =
      "{\"goal\": \"g\", \"sol1\": \"one\", \"sol2\": \"two\"}\n"
      "{\"goal\": \"h\", \"sol1\": \"three\", \"sol2\": \"four\"}\n";
  ASSERT_THAT(WriteFileAtomically(disk, "valid.jsonl", lines), IsOk());
  const TaskInfo& piqa = **FindTask("piqa");
  EXPECT_THAT(ReadExamples(disk, piqa, "valid.jsonl", 0),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(StartsWith("valid.jsonl: line 1: "),
                             HasSubstr("there is no file valid-labels.lst with labels"))));
  ASSERT_THAT(WriteFileAtomically(disk, "valid-labels.lst", "1\n0\n"), IsOk());
  const absl::StatusOr<TaskExamples> read = ReadExamples(disk, piqa, "valid.jsonl", 0);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->examples[0].gold, 1);
  EXPECT_EQ(read->examples[1].gold, 0);
  EXPECT_EQ(read->examples[1].context, "Question: h\nAnswer:");
  ASSERT_THAT(WriteFileAtomically(disk, "valid-labels.lst", "1\n"), IsOk());
  EXPECT_THAT(ReadExamples(disk, piqa, "valid.jsonl", 0),
              StatusIs(absl::StatusCode::kDataLoss,
                       "valid.jsonl: line 2: has no label: valid-labels.lst has 1 line, and "
                       "valid.jsonl 2"));
  EXPECT_THAT(ReadExamples(disk, piqa, "valid.jsonl", 1), IsOk());
  EXPECT_THAT(ReadExamples(disk, piqa, "no.jsonl", 1), StatusIs(absl::StatusCode::kNotFound));
}

TEST(TaskExamplesTest, PiqasLabelsBelongToItsQuestions) {
  MemoryFileSystem disk;
  const std::string line = "{\"goal\": \"g\", \"sol1\": \"one\", \"sol2\": \"two\"}\n";
  const TaskInfo& piqa = **FindTask("piqa");
  const auto read = [&](const std::string& lines, const std::string& labels, int64_t limit) {
    EXPECT_THAT(WriteFileAtomically(disk, "valid.jsonl", lines), IsOk());
    EXPECT_THAT(WriteFileAtomically(disk, "valid-labels.lst", labels), IsOk());
    return ReadExamples(disk, piqa, "valid.jsonl", limit);
  };
  for (const int64_t limit : {0, 1}) {
    EXPECT_THAT(read(line + "\n" + line, "1\n0\n1\n", limit),
                StatusIs(absl::StatusCode::kDataLoss,
                         "valid.jsonl: has labels of another file beside it: valid-labels.lst has "
                         "3 lines, and valid.jsonl 2"));
  }
  EXPECT_THAT(read(line + line, "1\n0\n \n\n", 0), IsOk());
  // Labels of its own leave the file beside it out.
  EXPECT_THAT(
      read("{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}\n", "1\n0\n", 0),
      IsOk());
  EXPECT_THAT(Parse("piqa", line, "1\n0\n"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the file of labels has 2 lines, and that of questions 1")));
}

TEST(TaskExamplesTest, LambadasThreeLastWords) {
  const char* const line = R"({"text": " \"No,\" said  Sarah\u00a0Ann "})";
  EXPECT_EQ(ParseOne("lambada", line).context, " \"No,\" said  Sarah\u00a0Ann ");
  const Example strict = ParseOne("lambada_strict", line);
  EXPECT_EQ(strict.context, "\"No,\" said  Sarah");
  EXPECT_THAT(strict.answers, ElementsAre(" Ann"));
  const Example lm_eval = ParseOne("lambada_openai", line);
  EXPECT_EQ(lm_eval.context, " \"No,\" said  Sarah\u00a0Ann");
  EXPECT_THAT(lm_eval.answers, ElementsAre(" "));
  EXPECT_EQ(ParseOne("lambada_openai", R"({"text": "one"})").context, "");
}

TEST(TaskExamplesTest, WordsAndBytesArePublishedOnes) {
  const Example page = ParseOne("wikitext", R"({"page": "a , b \n"})");
  EXPECT_EQ(page.context, "a, b\n");
  EXPECT_EQ(page.num_bytes, 7);
  EXPECT_EQ(page.num_words, 4);
  const absl::StatusOr<TaskExamples> text = Parse("wikitext103", " \n = A = \n b @-@  c \n");
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->examples[0].context, "\n= A =\nb- c\n");
  EXPECT_EQ(text->original_tokens, 8);  // two spaces have an empty one between them
}

TEST(TaskExamplesTest, APlainFileIsOneDocument) {
  MemoryFileSystem disk;
  ASSERT_THAT(WriteFileAtomically(disk, "a.txt", "{one} two\n"), IsOk());
  ASSERT_THAT(WriteFileAtomically(disk, "a.jsonl", "{\"text\": \"x\"}\n\n{\"text\": \"\"}"),
              IsOk());
  const TaskInfo& task = **FindTask("bits_per_byte");
  const absl::StatusOr<TaskExamples> one = ReadExamples(disk, task, "a.txt", 0);
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->examples.at(0).context, "{one} two\n");
  EXPECT_EQ(one->examples[0].num_bytes, 10);
  const absl::StatusOr<TaskExamples> two = ReadExamples(disk, task, "a.jsonl", 0);
  ASSERT_THAT(two, IsOk());
  ASSERT_EQ(two->examples.size(), 2u);
  EXPECT_EQ(two->examples[1].line, 3);
}

TEST(TaskExamplesTest, BadLinesAreToldByNumber) {
  const std::string good = "{\"text\": \"a b\"}\n";
  const std::pair<std::string, const char*> cases[] = {
      {"{\"text\": \"a\"", "line 2: is no JSON object"},
      {"[1]", "line 2: is no JSON object"},
      {"{\"text\": 3}", "line 2: \"text\" is no text"},
      {"{\"texts\": \"a\"}", "line 2: \"text\" is missing"},
      {"{\"text\": \" \"}", "line 2: \"text\" is empty"},
      {"{\"text\": \"\xff\"}", "line 2: is no JSON object"},
      {std::string("{\"text\": \"a\"}\0", 14), "line 2: there is a zero byte"}};
  for (const auto& [line, message] : cases) {
    EXPECT_THAT(Parse("lambada", good + line + "\n"),
                StatusIs(absl::StatusCode::kDataLoss, message));
  }
  EXPECT_THAT(Parse("lambada", "\n \r\n"), StatusIs(absl::StatusCode::kDataLoss, "has no example"));
  EXPECT_THAT(Parse("lambada_openai", "{\"text\": \" \"}\n"),
              StatusIs(absl::StatusCode::kDataLoss, "line 1: \"text\" is empty"));
  EXPECT_THAT(Parse("wikitext103", "a\xff"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Parse("ptb", " \n"), StatusIs(absl::StatusCode::kDataLoss, "has no text"));
  // There is nothing to divide by.
  EXPECT_THAT(Parse("bits_per_byte", "{\"text\": \"\"}\n{\"text\": \"\"}\n"),
              StatusIs(absl::StatusCode::kDataLoss, "has no text"));
}

TEST(TaskExamplesTest, BadLabelsAreRefused) {
  const auto with = [](const std::string& label) {
    return absl::StrCat(R"({"goal": "g", "sol1": "a", "sol2": "b", "label": )", label, "}");
  };
  for (const char* label : {"2", "-1", "\"\"", "\"x\"", "0.5", "null", "18446744073709551615"})
    EXPECT_THAT(Parse("piqa", with(label)), StatusIs(absl::StatusCode::kDataLoss)) << label;
  EXPECT_THAT(Parse("piqa", with("1")), IsOk());
  EXPECT_THAT(Parse("arc_easy", R"({"question": "q", "choices": {"text": ["a", "b"], "label":)"
                                R"( ["A", "B"]}, "answerKey": "C"})"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"answerKey\"")));
  EXPECT_THAT(Parse("arc_easy", R"({"question": "q", "choices": {"text": ["a", "b"], "label":)"
                                R"( ["A"]}, "answerKey": "A"})"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another number of labels")));
  EXPECT_THAT(Parse("arc_easy", R"({"question": "q", "choices": {"text": ["a", "b"], "label":)"
                                R"( ["A", "A"]}, "answerKey": "A"})"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the label of several choices")));
  EXPECT_THAT(Parse("hellaswag_llmc", R"({"ctx": "c", "endings": ["a"], "label": 0})"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("fewer than two")));
}

TEST(TaskExamplesTest, HellaswagHasFourEndings) {
  for (const char* endings : {R"("a", "b", "c")", R"("a", "b", "c", "d", "e")"}) {
    EXPECT_THAT(
        Parse("hellaswag", absl::StrCat(R"({"activity_label": "a", "ctx_a": "b", "ctx_b":)",
                                        R"( "c", "label": 0, "endings": [)", endings, "]}")),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("and HellaSwag has 4")))
        << endings;
  }
}

// Also where only marks of the page are left out of it.
TEST(TaskExamplesTest, EmptyAnswersAreRefused) {
  for (const char* ending : {"", "[step]"}) {
    EXPECT_THAT(Parse("hellaswag", absl::StrCat(R"({"activity_label": "a", "ctx_a": "b", "ctx_b":)",
                                                R"( "c", "label": 0, "endings": ["d", ")", ending,
                                                R"(", "e", "f"]})")),
                StatusIs(absl::StatusCode::kDataLoss, "line 1: answer 2 is empty"))
        << ending;
  }
  EXPECT_THAT(Parse("hellaswag_llmc", R"({"ctx": "c", "endings": ["", "a"], "label": 0})"),
              StatusIs(absl::StatusCode::kDataLoss, "line 1: answer 1 is empty"));
}

TEST(TaskExamplesTest, ALimitTakesTheFirstExamples) {
  const std::string lines = "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\nbroken\n";
  EXPECT_THAT(Parse("lambada", lines), StatusIs(absl::StatusCode::kDataLoss));
  const absl::StatusOr<TaskExamples> two = Parse("lambada", lines, std::nullopt, 2);
  ASSERT_THAT(two, IsOk());
  EXPECT_EQ(two->examples.size(), 2u);
}

}  // namespace
}  // namespace megatron
