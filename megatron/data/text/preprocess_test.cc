#include "megatron/data/text/preprocess.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/data/io/byte_source.h"
#include "megatron/data/io/line_batches.h"
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

LineBatchReader Input(const std::string& text, size_t max_line_bytes = size_t{1} << 30) {
  LineBatchReader::Options options;
  options.max_line_bytes = max_line_bytes;
  return LineBatchReader(
      {"a.jsonl"},
      [text](const std::string&, const std::atomic<bool>*) { return MakeMemorySource(text); },
      options);
}

class PreprocessTest : public testing::Test {
 protected:
  PreprocessTest() {
    options_.output_prefix = "d/x";
    EXPECT_THAT(fs_.CreateDirs("d"), IsOk());
  }

  absl::StatusOr<PreprocessReport> Run(const std::string& text) {
    return RunWith(tokenizer_, text);
  }
  absl::StatusOr<PreprocessReport> RunWith(const Tokenizer& tokenizer, const std::string& text) {
    LineBatchReader input = Input(text);
    return PreprocessJsonLines(input, tokenizer, options_, fs_, Always);
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

// Megatron-LM's tools/preprocess_data.py writes these bytes for these texts and tokens.
TEST_F(PreprocessTest, FilesHaveTheBytesThatMegatronWrites) {
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

TEST_F(PreprocessTest, SpecialTokensInTextAreParsedOnRequest) {
  const std::string text = "{\"text\": \"a<|endoftext|>b\"}\n";
  ASSERT_THAT(Run(text), IsOk());
  EXPECT_EQ(File("d/x_text_document.bin").size(), 15 * 2);
  options_.parse_special = true;
  ASSERT_THAT(Run(text), IsOk());
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0\0\x01"
                                                       "b\0",
                                                       6));
}

// The vocabulary of bytes, with the number 1 as BOS.
class BytesWithBos : public ByteLevelTokenizer {
 public:
  BytesWithBos() : special_(ByteLevelTokenizer::special()) { special_.bos = 1; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_;
};

TEST_F(PreprocessTest, TextsBeginWithBosOnRequest) {
  options_.prepend_bos = true;
  EXPECT_THAT(Run("{\"text\": \"a\"}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("beginning-of-text")));
  ASSERT_THAT(RunWith(BytesWithBos(), "{\"text\": \"ab\"}\n{\"text\": \"\"}\n"), IsOk());
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("\x01\0a\0b\0\x01\0", 8));
}

TEST_F(PreprocessTest, FilesDoNotDependOnTheNumberOfWorkers) {
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

TEST_F(PreprocessTest, LinesMayBeLongerThanABatchAndTheLastMayLackALineBreak) {
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

TEST_F(PreprocessTest, ABadLineIsAnErrorAndLeavesNothing) {
  EXPECT_THAT(
      Run("{\"text\": \"a\"}\n\n{\"text\": 5}\n{\n"),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("line 3: "), HasSubstr("number"))));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(PreprocessTest, SkippedBadLinesAreReported) {
  options_.skip_bad_lines = true;
  const absl::StatusOr<PreprocessReport> report =
      Run("{\"text\": \"a\"}\n[]\n{\"text\": \"\xff\"}\n{\"text\": \"\\ud800\"}\n{\"texts\": "
          "\"\"}\n{\"text\": \"b\"}\n{\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->bad_lines, 5);
  EXPECT_THAT(report->first_bad_lines,
              ElementsAre(HasSubstr("a.jsonl, line 2: "), HasSubstr("line 3: "),
                          HasSubstr("line 4: "), HasSubstr("line 5: "), HasSubstr("line 7: ")));
  for (const BadLineKind kind :
       {BadLineKind::kWrongType, BadLineKind::kBadUtf8, BadLineKind::kLoneSurrogate,
        BadLineKind::kMissingKey, BadLineKind::kBrokenJson}) {
    EXPECT_EQ(report->bad_lines_by_kind[static_cast<size_t>(kind)], 1) << BadLineKindName(kind);
  }
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0b\0", 4));
}

TEST_F(PreprocessTest, ALineThatTheTokenizerRefusesIsLeftOutOfAllDatasets) {
  options_.json_keys = {"a", "b"};
  options_.skip_bad_lines = true;
  LineBatchReader input = Input(
      "{\"a\": \"1 2\", \"b\": \"3\"}\n{\"a\": \"4 5\", \"b\": \"x\"}\n{\"a\": \"6\", \"b\": "
      "\"7\"}\n");
  const auto report = PreprocessJsonLines(input, NullTokenizer(10), options_, fs_, Always);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->tokens, 5);
  EXPECT_EQ(File("d/x_a_document.bin"), std::string("\x01\0\x02\0\x06\0", 6));
  EXPECT_EQ(File("d/x_b_document.bin"), std::string("\x03\0\x07\0", 4));
}

TEST_F(PreprocessTest, AnInterruptLeavesTheOlderDatasetUnchanged) {
  ASSERT_THAT(Run("{\"text\": \"a\"}\n"), IsOk());
  const std::string bin = File("d/x_text_document.bin"), idx = File("d/x_text_document.idx");
  LineBatchReader input = Input("{\"text\": \"b\"}\n");
  EXPECT_THAT(PreprocessJsonLines(input, tokenizer_, options_, fs_,
                                  [](const PreprocessReport&) { return false; }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Files(), ElementsAre("x_text_document.bin", "x_text_document.idx"));
  EXPECT_EQ(File("d/x_text_document.bin"), bin);
  EXPECT_EQ(File("d/x_text_document.idx"), idx);
}

TEST_F(PreprocessTest, ALineLongerThanTheLimitIsABadLine) {
  const std::string text =
      "{\"text\": \"a\"}\n{\"text\": \"" + std::string(1000, 'x') + "\"}\n{\"text\": \"b\"}\n";
  LineBatchReader input = Input(text, 100);
  EXPECT_THAT(PreprocessJsonLines(input, tokenizer_, options_, fs_, Always),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a.jsonl, line 2: ")));
  options_.skip_bad_lines = true;
  LineBatchReader again = Input(text, 100);
  const auto report = PreprocessJsonLines(again, tokenizer_, options_, fs_, Always);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->bad_lines_by_kind[static_cast<size_t>(BadLineKind::kTooLong)], 1);
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("a\0b\0", 4));
}

// There is a document of three sentences, one of none and one of one, in the layout of Megatron's
// --split-sentences.
TEST_F(PreprocessTest, SentencesAreSequencesOfOneDocument) {
  options_.split_sentences = true;
  options_.append_eod = true;
  const auto report = Run("{\"text\": \"A. Bb? C!\"}\n{\"text\": \" \"}\n{\"text\": \"D.\"}\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->sequences, 3);
  EXPECT_THAT(Files(), ElementsAre("x_text_sentence.bin", "x_text_sentence.idx"));
  EXPECT_EQ(File("d/x_text_sentence.bin"), std::string("A\0.\0 \0B\0b\0?\0C\0!\0\0\x01"
                                                       "D\0.\0\0\x01",
                                                       24));
  EXPECT_EQ(File("d/x_text_sentence.idx").substr(18),
            std::string("\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0", 16) +
                std::string("\x06\0\0\0\x03\0\0\0\x03\0\0\0", 12) +
                std::string("\0\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\x12\0\0\0\0\0\0\0", 24) +
                std::string("\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16) +
                std::string("\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0", 16));
}

TEST_F(PreprocessTest, AListOfTextsIsADocumentOfOneSequencePerText) {
  ASSERT_THAT(Run("{\"text\": [\"ab\", \"\", \"c. D.\"]}"), IsOk());
  EXPECT_EQ(File("d/x_text_document.idx").substr(18, 24),
            std::string("\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\x05\0\0\0", 24));
}

TEST_F(PreprocessTest, ASentenceThatTheTokenizerRefusesRemovesItsDocument) {
  options_.skip_bad_lines = true;
  LineBatchReader input = Input("{\"text\": [\"1 2\", \"x\"]}\n{\"text\": [\"3\", \"4\"]}\n");
  const auto report = PreprocessJsonLines(input, NullTokenizer(10), options_, fs_, Always);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->bad_lines_by_kind[static_cast<size_t>(BadLineKind::kRefusedByTokenizer)], 1);
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("\x03\0\x04\0", 4));
}

// A vocabulary of numbers, with 7 as BOS.
class NumbersWithBos : public NullTokenizer {
 public:
  NumbersWithBos() : NullTokenizer(10), special_(NullTokenizer::special()) { special_.bos = 7; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_;
};

TEST_F(PreprocessTest, ATextThatTheTokenizerRefusesLeavesNoBos) {
  options_.skip_bad_lines = true;
  options_.prepend_bos = true;
  const auto report = RunWith(NumbersWithBos(), "{\"text\": \"x\"}\n{\"text\": \"3 4\"}\n");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->tokens, 3);
  EXPECT_EQ(File("d/x_text_document.bin"), std::string("\x07\0\x03\0\x04\0", 6));
}

// Megatron stores tokens as u16 if the vocabulary has fewer than 65,500 entries.
TEST_F(PreprocessTest, TheVocabularySizeDeterminesTheTokenType) {
  for (const auto& [vocab_size, code] : {std::make_pair(65499, '\x08'), {65500, '\x04'}}) {
    LineBatchReader input = Input("{\"text\": \"1\"}");
    ASSERT_THAT(PreprocessJsonLines(input, NullTokenizer(vocab_size), options_, fs_, Always),
                IsOk());
    EXPECT_EQ(File("d/x_text_document.idx")[17], code);
  }
}

TEST_F(PreprocessTest, AFullDiskAtAnyInstantIsAnErrorAndLeavesNoVisibleDataset) {
  FaultFileSystem faults(&fs_);
  options_.json_keys = {"text", "title"};
  const auto run = [&] {
    LineBatchReader input = Input("{\"text\": \"ab\", \"title\": \"c\"}\n");
    return PreprocessJsonLines(input, tokenizer_, options_, faults, Always);
  };
  ASSERT_THAT(run(), IsOk());
  const int operations = faults.operation_count();
  for (int i = 0; i < operations; ++i) {
    SCOPED_TRACE(i);
    ASSERT_THAT(fs_.RemoveTree("d"), IsOk());
    ASSERT_THAT(fs_.CreateDirs("d"), IsOk());
    faults.FailAt(i, ENOSPC, /*lasting=*/true);
    const auto report = run();
    if (!faults.has_failed()) continue;  // only removals after success follow
    EXPECT_THAT(report, StatusIs(absl::StatusCode::kResourceExhausted));
    // A visible dataset is complete: it has both files.
    for (const std::string& key : options_.json_keys) {
      const std::string prefix = "d/x_" + key + "_document";
      EXPECT_LE(fs_.Stat(prefix + ".idx").ok(), fs_.Stat(prefix + ".bin").ok());
      EXPECT_FALSE(fs_.Stat(prefix + ".bin.partial").ok());
      EXPECT_FALSE(fs_.Stat(prefix + ".idx.partial").ok());
    }
  }
  faults.ClearFault();
}

TEST_F(PreprocessTest, AReadOnlyFolderIsAnErrorAtOnce) {
  FaultFileSystem faults(&fs_);
  faults.FailAt(0, EROFS, /*lasting=*/true);
  LineBatchReader input = Input("{\"text\": \"ab\"}\n");
  const auto report = PreprocessJsonLines(input, tokenizer_, options_, faults, Always);
  EXPECT_THAT(std::string(report.status().message()),
              AllOf(HasSubstr("d/x_text_document"), HasSubstr("Read-only file system")));
}

TEST_F(PreprocessTest, DamagedInputLeavesNothing) {
  LineBatchReader input(
      {"a.jsonl", "b.jsonl"},
      [](const std::string& path,
         const std::atomic<bool>*) -> absl::StatusOr<std::unique_ptr<ByteSource>> {
        if (path == "b.jsonl") return absl::DataLossError("damaged");
        return MakeMemorySource("{\"text\": \"ab\"}\n");
      },
      {});
  EXPECT_THAT(PreprocessJsonLines(input, tokenizer_, options_, fs_, Always),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(PreprocessTest, InvalidOptionsAreRefused) {
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
