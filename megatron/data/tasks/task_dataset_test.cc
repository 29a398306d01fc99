#include "megatron/data/tasks/task_dataset.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class TaskDatasetTest : public ::testing::Test {
 protected:
  TaskDatasetTest() {
    TokenizerOptions options;
    options.type = "StoryWordPiece";
    auto tokenizer = CreateTokenizer(options);
    EXPECT_THAT(tokenizer, IsOk());
    tokenizer_ = *std::move(tokenizer);
    options_.seq_length = 12;
    options_.decoder_seq_length = 4;
  }

  static std::string Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
    return path;
  }
  absl::StatusOr<LabelledExamples> Read(LabelledTask task, const std::string& text) {
    return LabelledExamples::Read(Write("examples", text), task, *tokenizer_);
  }
  std::unique_ptr<TaskDataset> Open(LabelledTask task, const std::string& text) {
    auto examples = Read(task, text);
    EXPECT_THAT(examples, IsOk());
    options_.range = {0, examples->size()};
    auto dataset =
        TaskDataset::Create(std::make_shared<const LabelledExamples>(*std::move(examples)),
                            tokenizer_->special(), options_);
    EXPECT_THAT(dataset, IsOk());
    return *std::move(dataset);
  }
  std::string Text(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) absl::StrAppend(&text, tokenizer_->Piece(token), " ");
    return text;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  TaskDatasetOptions options_;
};

TEST_F(TaskDatasetTest, APairIsOneSequenceWithTwoTypes) {
  const auto dataset = Open(LabelledTask::kQqp,
                            "id\tq\tq\tquestion1\tquestion2\tis_duplicate\n"
                            "1\t2\t3\ttom was happy\tana was sad\t1\n");
  Sample sample;
  sample.encoder_tokens = sample.spans = {1};
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_EQ(Text(sample.tokens), "[CLS] tom was happy [SEP] ana was sad [SEP] ");
  EXPECT_THAT(sample.types, ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
  EXPECT_THAT(sample.labels, Each(-1));
  EXPECT_THAT(sample.loss_mask, Each(0));
  EXPECT_EQ(sample.sequence_class, 1);
  EXPECT_EQ(sample.sequence_weight, 1);
  EXPECT_TRUE(sample.encoder_tokens.empty() && sample.spans.empty());
}

TEST_F(TaskDatasetTest, WhatIsLongerIsCutAtItsEndAndEndsWithASeparator) {
  options_.seq_length = 7;
  const auto dataset = Open(LabelledTask::kQqp,
                            "id\tq\tq\tquestion1\tquestion2\tis_duplicate\n"
                            "1\t2\t3\ttom was happy\tana was sad\t0\n");
  Sample sample;
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_EQ(Text(sample.tokens), "[CLS] tom was happy [SEP] ana [SEP] ");
  EXPECT_THAT(sample.types, ElementsAre(0, 0, 0, 0, 0, 1, 1));
  options_.seq_length = 4;
  ASSERT_THAT(
      Open(LabelledTask::kQqp, "h\n1\t2\t3\ttom was happy\tana was sad\t0\n")->Get(0, &sample),
      IsOk());
  EXPECT_EQ(Text(sample.tokens), "[CLS] tom was [SEP] ");
  EXPECT_THAT(sample.types, ElementsAre(0, 0, 0, 1));
}

TEST_F(TaskDatasetTest, ChoicesStandOneBehindTheOther) {
  const auto dataset = Open(LabelledTask::kRace,
                            R"({"article": "tom was sad", "questions": ["he was"],)"
                            R"( "options": [["sad", "happy", "big", "cold"]], "answers": ["A"]})");
  Sample sample;
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_THAT(Text(sample.tokens), HasSubstr("[CLS] he was sad [SEP] tom was sad [SEP] "
                                             "[CLS] he was happy [SEP] tom was sad [SEP] "));
  EXPECT_THAT(sample.document_starts, ElementsAre(0, 9, 18, 27));
  ASSERT_EQ(sample.positions.size(), 36u);
  EXPECT_EQ(sample.positions[8], 8);
  EXPECT_EQ(sample.positions[9], 0);
  EXPECT_EQ(sample.types[4], 0);
  EXPECT_EQ(sample.types[5], 1);
  EXPECT_EQ(sample.types[9], 0);
  EXPECT_EQ(sample.sequence_class, 0);
}

TEST_F(TaskDatasetTest, AnAnswerOfT5IsOneSpan) {
  const auto dataset =
      Open(LabelledTask::kTextToText, R"({"inputs": "tom was sad", "targets": "sad was tom too"})");
  Sample sample;
  sample.types = {1};
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_EQ(Text(sample.encoder_tokens), "tom was sad [EOS] ");
  // The answer is cut to three tokens.
  EXPECT_EQ(Text(sample.tokens), "[BOS] sad was tom ");
  EXPECT_EQ(Text(sample.labels), "sad was tom [EOS] ");
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(sample.spans, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(sample.types.empty());
}

TEST_F(TaskDatasetTest, EachEpochHasAllExamplesInAnotherOrder) {
  std::string text = "header\n";
  for (int i = 0; i < 20; ++i)
    absl::StrAppend(&text, i, "\t2\t3\ttom\t", std::string(i + 1, 'a'), "\t", i % 2, "\n");
  options_.num_samples = 50;
  options_.seq_length = 64;
  const auto dataset = Open(LabelledTask::kQqp, text);
  ASSERT_EQ(dataset->size(), 50);
  std::vector<std::string> epochs[2];
  Sample sample;
  for (int i = 0; i < 40; ++i) {
    ASSERT_THAT(dataset->Get(i, &sample), IsOk());
    epochs[i / 20].push_back(Text(sample.tokens));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<std::string>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(std::unique(epoch.begin(), epoch.end()), epoch.end());
  }
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_THAT(dataset->Get(50, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(TaskDatasetTest, FilesOfADirectoryAreReadInTheOrderOfTheirNames) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/race");
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
  for (const char* name : {"2", "1"}) {
    Write(absl::StrCat("race/", name, ".txt"),
          absl::StrCat(
              R"({"article": "tom", "questions": ["he"], "options": [["a", "b", "c", "d"]],)",
              R"( "answers": [")", name[0] == '1' ? "A" : "D", "\"]}\n"));
  }
  const auto examples = LabelledExamples::Read(directory, LabelledTask::kRace, *tokenizer_);
  ASSERT_THAT(examples, IsOk());
  ASSERT_EQ(examples->size(), 2);
  EXPECT_EQ(examples->Label(0), 0);
  EXPECT_EQ(examples->Label(1), 3);
}

TEST_F(TaskDatasetTest, TellsWhatIsCutAndWhatHasNoExample) {
  const auto examples = Read(LabelledTask::kQqp,
                             "header\n"
                             "1\t2\t3\ttom was happy\tana was sad\t1\n"
                             "1\t2\t3\ttom\tana\t1\n"
                             "a line of another kind\n");
  ASSERT_THAT(examples, IsOk());
  EXPECT_EQ(
      examples->Describe(8, 0),
      "2 examples, 8 tokens; 1 are longer than the model reads, and cut; 1 line left out, with "
      "an empty question or not 6 columns");
  EXPECT_EQ(examples->Describe(9, 0),
            "2 examples, 8 tokens; 1 line left out, with an empty question or not 6 columns");
}

TEST_F(TaskDatasetTest, FingerprintsDependOnTextsAndLabels) {
  const std::string line = "h\n1\t2\t3\ttom\tana\t";
  const std::string first = Read(LabelledTask::kQqp, line + "1")->Fingerprint();
  EXPECT_EQ(Read(LabelledTask::kQqp, line + "1")->Fingerprint(), first);
  EXPECT_NE(Read(LabelledTask::kQqp, line + "0")->Fingerprint(), first);
  EXPECT_NE(Read(LabelledTask::kQqp, "h\n1\t2\t3\ttom ana\tana\t1")->Fingerprint(), first);
}

TEST_F(TaskDatasetTest, BytesThatAreNotUtf8AreRefused) {
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\n1\t2\t3\ta\xFF\tb\t1\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 2: is no text in UTF-8")));
  EXPECT_THAT(Read(LabelledTask::kMnli,
                   "a\tb\tc\td\te\tf\tg\th\ti\tj\tk\n"
                   "a\tb\tc\td\te\tf\tg\th\ti\xC3\tj\tneutral\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 2: is no text in UTF-8")));
}

TEST_F(TaskDatasetTest, ErrorsNameTheFileAndTheLine) {
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\n1\t2\t3\ta\tb\t1\n1\t2\t3\ta\tb\t7\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("examples, line 3: the label")));
  EXPECT_THAT(Read(LabelledTask::kMnli, "a\tb\tc\td\te\tf\tg\th\ti\tj\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("examples, line 1: has 10 columns")));
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\n\n1\t2\t3\ta\tb\t1\n\t\t\t\t\t\n\n"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("examples, line 4: has tabs")));
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\r\n\r\n1\t2\t3\ta\tb\t1\r\n\n"), IsOk());
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\n"),
              StatusIs(absl::StatusCode::kDataLoss, EndsWith("examples: has no example")));
  EXPECT_THAT(Read(LabelledTask::kQqp, "header\n\n1\t2\t3\n1\t2\t3\t\ta\t1\n"),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("has no example, and 2 lines that had to be left out: "),
                             EndsWith("examples, line 3, has 3 columns with tabs between them, "
                                      "and QQP has 6"))));
  const std::string mnli = "0\t1\t2\t3\t4\t5\t6\t7\ttom\tana\tneutral\tneutral";
  EXPECT_THAT(Read(LabelledTask::kMnli, mnli + "\n" + mnli + "\n"), IsOk());
  for (const std::string& line : {mnli + "\t", "0\t" + mnli}) {
    EXPECT_THAT(Read(LabelledTask::kMnli, absl::StrCat(mnli, "\n", mnli, "\n", line, "\n")),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr("examples, line 3: has 13 columns, and the header 12")));
  }
  // The texts would be the columns in front of them.
  EXPECT_THAT(Read(LabelledTask::kMnli, absl::StrCat(mnli, "\n", mnli.substr(2), "\n")),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("examples, line 2: has 11 columns, and the header 12")));
  TokenizerOptions bytes;
  bytes.type = "ByteLevel";
  const auto tokenizer = CreateTokenizer(bytes);
  auto examples = LabelledExamples::Read(Write("bytes", "header\n1\t2\t3\ta\tb\t1\n"),
                                         LabelledTask::kQqp, **tokenizer);
  ASSERT_THAT(examples, IsOk());
  options_.range = {0, 1};
  EXPECT_THAT(TaskDataset::Create(std::make_shared<const LabelledExamples>(*std::move(examples)),
                                  (*tokenizer)->special(), options_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no [CLS]")));
}

}  // namespace
}  // namespace megatron
