#include "megatron/data/preprocess.h"

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool Always(const PreprocessReport&) { return true; }

class PreprocessTest : public testing::Test {
 protected:
  PreprocessTest() {
    options_.output_prefix = "d/x";
    EXPECT_THAT(fs_.CreateDirs("d"), IsOk());
  }

  absl::StatusOr<PreprocessReport> Run(const std::string& text) {
    std::istringstream input(text);
    return PreprocessJsonLines(input, tokenizer_, options_, fs_, Always);
  }

  std::string File(const std::string& name) {
    absl::StatusOr<std::string> contents = ReadFileToString(fs_, name);
    EXPECT_THAT(contents, IsOk()) << name;
    return contents.value_or("");
  }

  std::vector<std::string> Files() { return fs_.List("d").value(); }

  MemoryFileSystem fs_;
  ByteLevelTokenizer tokenizer_;
  PreprocessOptions options_;
};

// What tools/preprocess_data.py of Megatron-LM writes for these texts and tokens.
TEST_F(PreprocessTest, WritesMegatronsBytes) {
  options_.append_eod = true;
  const absl::StatusOr<PreprocessReport> report =
      Run("{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->tokens, 5);
  EXPECT_EQ(report->bytes, 42);
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0b\0\0\x01"
                                                       "c\0\0\x01",
                                                       10));
  EXPECT_EQ(File("d/x_text_document.idx"),
            std::string("MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08", 18) +
                std::string("\x02\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0", 16) +
                std::string("\x03\0\0\0\x02\0\0\0", 8) +
                std::string("\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0", 16) +
                std::string("\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", 16) +
                std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16));
}

TEST_F(PreprocessTest, TheFilesDoNotDependOnTheNumberOfWorkers) {
  std::string text;
  for (int i = 0; i < 50000; ++i) {
    absl::StrAppend(&text, "{\"text\": \"", i, std::string(i % 97, 'x'), "\"}\n");
    if (i % 1000 == 0) absl::StrAppend(&text, "{broken\n\n");
  }
  options_.skip_bad_lines = true;
  ASSERT_THAT(Run(text), IsOk());
  const std::string bin = File("d/x_text_document.bin"), idx = File("d/x_text_document.idx");
  for (const int workers : {2, 3, 8}) {
    options_.workers = workers;
    const absl::StatusOr<PreprocessReport> report = Run(text);
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->documents, 50000);
    EXPECT_EQ(report->bad_lines, 50);
    EXPECT_THAT(report->first_bad_lines, SizeIs(10));
    EXPECT_THAT(report->first_bad_lines[1], HasSubstr("line 1004: "));
    EXPECT_EQ(File("d/x_text_document.bin"), bin);
    EXPECT_EQ(File("d/x_text_document.idx"), idx);
  }
}

TEST_F(PreprocessTest, EachKeyHasItsDataset) {
  options_.json_keys = {"text", "title"};
  ASSERT_THAT(Run(R"({"title": "t", "text": "ab"})"), IsOk());
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0b\0", 4));
  EXPECT_EQ(File("d/x_title_document.bin"), std::string("t\0", 2));
}

TEST_F(PreprocessTest, LinesMayBeLongerThanABatchAndTheLastMayLackItsEnd) {
  const std::string body(5 << 20, 'y');
  const absl::StatusOr<PreprocessReport> report =
      Run("{\"text\": \"" + body + "\"}\r\n   \n\n{\"text\": \"z\"}");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->tokens, static_cast<int64_t>(body.size()) + 1);
}

TEST_F(PreprocessTest, AnInputWithoutDocumentsIsAnErrorAndLeavesNothing) {
  EXPECT_THAT(Run(""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("lines read: 0")));
  EXPECT_THAT(Run("\n  \n"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("lines read: 2")));
  options_.skip_bad_lines = true;
  EXPECT_THAT(Run("\n{\n"), StatusIs(absl::StatusCode::kDataLoss,
                                     AllOf(HasSubstr("lines read: 2"), HasSubstr("line 2: "))));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(PreprocessTest, ABadLineEndsTheWorkAndLeavesNothing) {
  EXPECT_THAT(
      Run("{\"text\": \"a\"}\n\n{\"text\": 5}\n{\n"),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("line 3: "), HasSubstr("number"))));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(PreprocessTest, BadLinesCanBeSkippedAndAreTold) {
  options_.skip_bad_lines = true;
  const absl::StatusOr<PreprocessReport> report =
      Run("{\"text\": \"a\"}\n[]\n{\"text\": \"\xff\"}\n{\"text\": \"\\ud800\"}\n{\"texts\": "
          "\"\"}\n{\"text\": \"b\"}\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->bad_lines, 4);
  EXPECT_THAT(report->first_bad_lines, ElementsAre(HasSubstr("line 2: "), HasSubstr("line 3: "),
                                                   HasSubstr("line 4: "), HasSubstr("line 5: ")));
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0b\0", 4));
}

TEST_F(PreprocessTest, ALineThatTheTokenizerRefusesIsLeftOutOfAllDatasets) {
  options_.json_keys = {"a", "b"};
  options_.skip_bad_lines = true;
  std::istringstream input(
      "{\"a\": \"1 2\", \"b\": \"3\"}\n{\"a\": \"4 5\", \"b\": \"x\"}\n{\"a\": \"6\", \"b\": "
      "\"7\"}\n");
  const auto report = PreprocessJsonLines(input, NullTokenizer(10), options_, fs_, Always);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->tokens, 5);
  EXPECT_EQ(File("d/x_a_document.bin"), std::string("\x01\0\x02\0\x06\0", 6));
  EXPECT_EQ(File("d/x_b_document.bin"), std::string("\x03\0\x07\0", 4));
}

TEST_F(PreprocessTest, AnInterruptLeavesTheOlderDataset) {
  ASSERT_THAT(Run("{\"text\": \"a\"}\n"), IsOk());
  const std::string bin = File("d/x_text_document.bin"), idx = File("d/x_text_document.idx");
  std::istringstream input("{\"text\": \"b\"}\n");
  EXPECT_THAT(PreprocessJsonLines(input, tokenizer_, options_, fs_,
                                  [](const PreprocessReport&) { return false; }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Files(), ElementsAre("x_text_document.bin", "x_text_document.idx"));
  EXPECT_EQ(File("d/x_text_document.bin"), bin);
  EXPECT_EQ(File("d/x_text_document.idx"), idx);
}

TEST_F(PreprocessTest, ImpossibleOptionsAreRefused) {
  options_.json_keys = {"a/b"};
  EXPECT_THAT(Run(""), StatusIs(absl::StatusCode::kInvalidArgument));
  options_.json_keys = {"a", "a"};
  EXPECT_THAT(Run(""), StatusIs(absl::StatusCode::kInvalidArgument));
  options_.json_keys = {"a"};
  options_.workers = 0;
  EXPECT_THAT(Run(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
