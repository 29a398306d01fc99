#include "megatron/train/metrics/jsonl_writer.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics Step(int64_t iteration) {
  StepMetrics step;
  step.iteration = iteration;
  step.consumed_samples = 16 * iteration;
  step.loss = 1.0 / 3;
  step.learning_rate = 3e-5;
  step.grad_norm = 2.5;
  step.global_batch_size = 16;
  step.speed.elapsed_ms = 81.25;
  step.speed.tokens_per_second = 50443;
  step.speed.model_tflops = 0.25;
  return step;
}

EvaluationMetrics Evaluation(int64_t iteration, double loss, bool on_test_set = false) {
  EvaluationMetrics evaluation;
  evaluation.iteration = iteration;
  evaluation.loss = loss;
  evaluation.on_test_set = on_test_set;
  return evaluation;
}

class JsonlWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(fs_.RemoveTree(JoinPath(::testing::TempDir(), "jsonl_writer_test")), IsOk());
  }

  std::unique_ptr<JsonlWriter> OpenAt(int64_t last_iteration) {
    auto writer = JsonlWriter::Open(fs_, path_, last_iteration);
    EXPECT_THAT(writer, IsOk());
    EXPECT_THAT((*writer)->opened(), IsOk());
    return *std::move(writer);
  }

  std::unique_ptr<JsonlWriter> OpenOn(FileSystem& fs) {
    auto writer = JsonlWriter::Open(fs, path_, 0);
    EXPECT_THAT(writer, IsOk());
    return *std::move(writer);
  }

  std::string Contents() { return *ReadFileToString(fs_, path_); }

  void WriteFile(absl::string_view text) {
    ASSERT_THAT(fs_.CreateDirs(ParentPath(path_)), IsOk());
    ASSERT_THAT(WriteFileAtomically(fs_, path_, text), IsOk());
  }

  FileSystem& fs_ = PosixFileSystem();
  const std::string path_ = JoinPath(::testing::TempDir(), "jsonl_writer_test/run/metrics.jsonl");
};

TEST_F(JsonlWriterTest, WritesOneObjectPerStepAndEvaluation) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  ASSERT_THAT(writer->WriteEvaluation(Evaluation(1, 2.0)), IsOk());
  EXPECT_EQ(
      Contents(),
      "{\"iteration\":1,\"consumed_samples\":16,\"lm "
      "loss\":0.3333333333333333,\"learning-rate\":3e-05,\"grad-norm\":2.5,"
      "\"loss-scale\":1.0,\"batch-size\":16,\"skipped\":false,\"elapsed_ms\":81.25,\"tokens_per_"
      "second\":50443.0,"
      "\"tflops\":0.25}\n"
      "{\"iteration\":1,\"lm loss validation\":2.0,\"lm loss validation ppl\":7.38905609893065}\n");
}

TEST_F(JsonlWriterTest, OtherValuesOfAModelHaveTheirNames) {
  StepMetrics step = Step(1);
  step.others = {{"sop loss", 0.5}};
  EXPECT_THAT(ToJsonLine(step), ::testing::HasSubstr(",\"sop loss\":0.5,"));
  EvaluationMetrics evaluation = Evaluation(1, 2.0);
  evaluation.others = {{"lm accuracy", 0.25}};
  EXPECT_THAT(ToJsonLine(evaluation), ::testing::HasSubstr(",\"lm accuracy validation\":0.25}"));
  evaluation.on_test_set = true;
  EXPECT_THAT(ToJsonLine(evaluation), ::testing::HasSubstr(",\"lm accuracy test\":0.25}"));
}

TEST_F(JsonlWriterTest, TrainingFilesHaveTheirNames) {
  StepMetrics step = Step(1);
  step.sources = {{"news", 1.5, /*is_loss=*/true}, {"a b/validation", 2, /*is_loss=*/true}};
  const std::string line = ToJsonLine(step);
  EXPECT_THAT(line, HasSubstr(",\"lm loss train news\":1.5,\"lm loss train a b/validation\":2.0,"));
  const auto history = ParseMetrics(line);
  ASSERT_THAT(history, IsOk());
  ASSERT_EQ(history->steps.size(), 1);
  ASSERT_EQ(history->steps[0].sources.size(), 2);
  EXPECT_EQ(history->steps[0].sources[1].name, "a b/validation");
  EXPECT_EQ(ToJsonLine(history->steps[0]), line);
  EXPECT_THAT(ToJsonLine(Step(1)), Not(HasSubstr("lm loss train")));
}

TEST_F(JsonlWriterTest, ValidationSetsHaveTheirNames) {
  EvaluationMetrics evaluation = Evaluation(1, 2.0);
  evaluation.sets = {{"news", 1.5, /*is_loss=*/true}, {"a b", std::nan(""), /*is_loss=*/true}};
  const std::string line = ToJsonLine(evaluation);
  EXPECT_THAT(line, HasSubstr(",\"lm loss validation news\":1.5,\"lm loss validation a b\":null}"));
  const auto history = ParseMetrics(line);
  ASSERT_THAT(history, IsOk());
  ASSERT_EQ(history->evaluations.size(), 1);
  EXPECT_EQ(history->evaluations[0].loss, 2);
  ASSERT_EQ(history->evaluations[0].sets.size(), 2);
  EXPECT_EQ(history->evaluations[0].sets[0].name, "news");
  EXPECT_EQ(history->evaluations[0].sets[0].value, 1.5);
  EXPECT_EQ(history->evaluations[0].sets[1].name, "a b");
}

TEST_F(JsonlWriterTest, NamesThatAreNotUtf8AreReplaced) {
  EvaluationMetrics evaluation = Evaluation(1, 2.0);
  evaluation.sets = {{"a\xff", 1.5, /*is_loss=*/true}};
  EXPECT_THAT(ToJsonLine(evaluation), HasSubstr("\"lm loss validation a\xef\xbf\xbd\":1.5}"));
  StepMetrics step = Step(1);
  step.sources = {{"a\xff", 1.5, /*is_loss=*/true}};
  EXPECT_THAT(ToJsonLine(step), HasSubstr("\"lm loss train a\xef\xbf\xbd\":1.5,"));
}

TEST_F(JsonlWriterTest, TasksHaveTheirNames) {
  EvaluationMetrics evaluation = Evaluation(1, 2.0);
  evaluation.tasks = {{"piqa/acc", 0.5}, {"ptb/ppl", HUGE_VAL}};
  const std::string line = ToJsonLine(evaluation);
  EXPECT_THAT(line, HasSubstr(",\"tasks/piqa/acc\":0.5,\"tasks/ptb/ppl\":null}"));
  const auto history = ParseMetrics(line);
  ASSERT_THAT(history, IsOk());
  ASSERT_EQ(history->evaluations.size(), 1);
  ASSERT_EQ(history->evaluations[0].tasks.size(), 2);
  EXPECT_EQ(history->evaluations[0].tasks[0].name, "piqa/acc");
  EXPECT_EQ(history->evaluations[0].tasks[0].value, 0.5);
}

TEST_F(JsonlWriterTest, AStepThatIsMeasuredHasTheValuesOfItsLayers) {
  StepMetrics step = Step(1);
  step.loss_score = std::numeric_limits<double>::infinity();
  step.grad_norm_score = -1.5;
  step.diagnostics.noise_scale = 40;
  step.diagnostics.layers = {{"grad-norm/decoder.layers.0", 0.5},
                             {"output-rms/decoder.layers.0", std::nan("")}};
  EXPECT_THAT(ToJsonLine(step), HasSubstr("\"loss-z-score\":null,\"grad-norm-z-score\":-1.5,"
                                          "\"gradient-noise-scale\":40.0,"));
  EXPECT_THAT(ToJsonLine(step), HasSubstr("\"tflops\":0.25,\"grad-norm/decoder.layers.0\":0.5,"
                                          "\"output-rms/decoder.layers.0\":null}"));
  const auto history = ParseMetrics(ToJsonLine(step));
  ASSERT_THAT(history, IsOk());
  EXPECT_EQ(ToJsonLine(history->steps[0]), ToJsonLine(step));
  step.diagnostics.experts = {{"decoder.layers.0", {3, 0, 5}}};
  EXPECT_THAT(ToJsonLine(step), HasSubstr(",\"expert-load/decoder.layers.0\":[3,0,5]}"));
  EXPECT_THAT(ParseMetrics(ToJsonLine(step)), IsOk());
}

TEST_F(JsonlWriterTest, ReadsWhatItWrote) {
  StepMetrics skipped = Step(2);
  skipped.loss = std::numeric_limits<double>::infinity();
  skipped.skipped = true;
  skipped.params_norm = 7;
  skipped.num_zeros = 5;
  skipped.sent_gradients = 0.25;
  skipped.speed.mfu = 0.41;
  const auto history = ParseMetrics(absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(skipped),
                                                 ToJsonLine(Evaluation(2, 1.5)),
                                                 ToJsonLine(Evaluation(2, 2.5, true))));
  ASSERT_THAT(history, IsOk());
  ASSERT_EQ(history->steps.size(), 2);
  EXPECT_EQ(ToJsonLine(history->steps[0]), ToJsonLine(Step(1)));
  EXPECT_EQ(ToJsonLine(history->steps[1]), ToJsonLine(skipped));
  EXPECT_TRUE(std::isnan(history->steps[1].loss));
  ASSERT_EQ(history->evaluations.size(), 1);
  EXPECT_EQ(history->evaluations[0].loss, 1.5);
  ASSERT_EQ(history->tests.size(), 1);
  EXPECT_EQ(history->tests[0].loss, 2.5);
  EXPECT_EQ(ToJsonLine(history->tests[0]), ToJsonLine(Evaluation(2, 2.5, true)));
}

TEST_F(JsonlWriterTest, AfterAResumeTheFileReadsAsIfNothingHadHappened) {
  {
    const auto writer = OpenAt(0);
    for (int i = 1; i <= 5; ++i) ASSERT_THAT(writer->WriteStep(Step(i)), IsOk());
    ASSERT_THAT(writer->WriteEvaluation(Evaluation(5, 1)), IsOk());
  }
  const std::string uninterrupted = Contents();
  const auto writer = OpenAt(3);
  EXPECT_EQ(Contents(),
            absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(2)), ToJsonLine(Step(3))));
  for (int i = 4; i <= 5; ++i) ASSERT_THAT(writer->WriteStep(Step(i)), IsOk());
  ASSERT_THAT(writer->WriteEvaluation(Evaluation(5, 1)), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  EXPECT_EQ(Contents(), uninterrupted);
}

TEST_F(JsonlWriterTest, ATrainingFromTheBeginningEmptiesTheFile) {
  WriteFile(ToJsonLine(Step(1)));
  OpenAt(0);
  EXPECT_EQ(Contents(), "");
}

TEST_F(JsonlWriterTest, TheFileMayBeLargerThanMemory) {
  WriteFile(absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(2)), ToJsonLine(Step(3))));
  ASSERT_EQ(truncate(path_.c_str(), int64_t{3} << 30), 0);
  OpenAt(2);
  EXPECT_EQ(Contents(), ToJsonLine(Step(1)) + ToJsonLine(Step(2)));
}

// The file is read in pieces of 1 MiB.
TEST_F(JsonlWriterTest, RecordsThatLieInTwoPiecesStay) {
  std::string before, after;
  for (int i = 1; i <= 12000; ++i) {
    const std::string line = ToJsonLine(Step(i));
    if (i != 7000) absl::StrAppend(&before, line);
    if (i % 1000 == 0) absl::StrAppend(&before, line.substr(0, 20), "\n");
    if (i <= 11000) absl::StrAppend(&after, line);
  }
  ASSERT_GT(before.size(), size_t{2} << 20);
  WriteFile(before);
  const auto writer = JsonlWriter::Open(fs_, path_, 11000, nullptr, ToJsonLine(Step(7000)));
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->opened(), IsOk());
  EXPECT_TRUE(Contents() == after);
}

TEST_F(JsonlWriterTest, ALineWithoutAnEndIsNotReadToTheEnd) {
  WriteFile(ToJsonLine(Step(1)));
  ASSERT_EQ(truncate(path_.c_str(), int64_t{3} << 30), 0);
  EXPECT_THAT(JsonlWriter::Open(fs_, path_, 9).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 2 is not a record")));
}

TEST_F(JsonlWriterTest, DropsALineThatACrashCutShort) {
  const std::string first = ToJsonLine(Step(1));
  for (size_t length = 0; length < first.size(); ++length) {
    WriteFile(absl::StrCat(first, ToJsonLine(Step(2)).substr(0, length)));
    OpenAt(2);
    EXPECT_EQ(Contents(), first) << length;
  }
}

TEST_F(JsonlWriterTest, WhatAFullDiskRefusedIsWrittenLater) {
  FaultFileSystem full(&fs_);
  auto writer = JsonlWriter::Open(full, path_, 0);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->WriteStep(Step(1)), IsOk());
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  for (int i = 2; i <= 3; ++i)
    EXPECT_THAT((*writer)->WriteStep(Step(i)), StatusIs(absl::StatusCode::kResourceExhausted));
  full.ClearFault();
  for (int i = 4; i <= 5; ++i) ASSERT_THAT((*writer)->WriteStep(Step(i)), IsOk());

  const auto history = ParseMetrics(Contents());
  ASSERT_THAT(history, IsOk());
  std::vector<int64_t> iterations;
  for (const StepMetrics& step : history->steps) iterations.push_back(step.iteration);
  EXPECT_THAT(iterations, ElementsAre(1, 2, 3, 4, 5));
  ASSERT_THAT((*writer)->Sync(), IsOk());
  ASSERT_THAT((*writer)->WriteStep(Step(6)), IsOk());
  std::string whole;
  for (int i = 1; i <= 6; ++i) absl::StrAppend(&whole, ToJsonLine(Step(i)));
  EXPECT_EQ(Contents(), whole);
}

// However few bytes of a record find room, and of what follows it on a line of its own.
TEST_F(JsonlWriterTest, AnyPartOfARecordThatAFullDiskTakesIsTorn) {
  const auto on_signal = signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const size_t whole = ToJsonLine(Step(1)).size();
  const auto write = [&](JsonlWriter* writer, int step, size_t room) {
    rlimit during = before;
    during.rlim_cur = room;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &during), 0);
    const absl::Status written = writer->WriteStep(Step(step));
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    return written;
  };
  for (size_t part = 0; part < whole; ++part) {
    const auto writer = OpenAt(0);
    ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
    for (size_t more = 0; more < 3; ++more)
      EXPECT_FALSE(write(writer.get(), static_cast<int>(2 + more), whole + part + more).ok());
    ASSERT_THAT(writer->WriteStep(Step(5)), IsOk());
    const auto history = ParseMetrics(Contents());
    ASSERT_THAT(history, IsOk()) << part;
    EXPECT_EQ(history->steps.size(), 5) << part;
  }
  signal(SIGXFSZ, on_signal);
}

// A disk may be full again while torn lines are removed.
TEST_F(JsonlWriterTest, AnyFailureLeavesEachRecordOnceInTheEnd) {
  std::string whole;
  for (int i = 1; i <= 4; ++i) absl::StrAppend(&whole, ToJsonLine(Step(i)));
  for (const bool lasting : {false, true}) {
    for (int fault = 0; fault < 30; ++fault) {
      FaultFileSystem disk(&fs_);
      auto writer = JsonlWriter::Open(disk, path_, 0);
      ASSERT_THAT(writer, IsOk());
      disk.FailAt(fault, ENOSPC, lasting);
      for (int i = 1; i <= 3; ++i) {
        (*writer)->WriteStep(Step(i)).IgnoreError();
        (*writer)->Sync().IgnoreError();
      }
      disk.ClearFault();
      ASSERT_THAT((*writer)->WriteStep(Step(4)), IsOk());
      ASSERT_THAT((*writer)->Sync(), IsOk());
      EXPECT_EQ(Contents(), whole) << fault;
      EXPECT_FALSE(fs_.Stat(absl::StrCat(path_, ".tmp")).ok()) << fault;
    }
  }
}

TEST_F(JsonlWriterTest, TheLastRecordsAreWrittenAtTheEnd) {
  FaultFileSystem full(&fs_);
  auto writer = JsonlWriter::Open(full, path_, 0);
  ASSERT_THAT(writer, IsOk());
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  EXPECT_FALSE((*writer)->WriteStep(Step(1)).ok());
  full.ClearFault();
  writer->reset();
  OpenAt(1);
  EXPECT_EQ(Contents(), ToJsonLine(Step(1)));
}

TEST_F(JsonlWriterTest, AFileThatIsRemovedBeginsAnew) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  ASSERT_THAT(fs_.RemoveTree(ParentPath(path_)), IsOk());
  const absl::Status told = writer->WriteStep(Step(2));
  EXPECT_THAT(told, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(told.message(), HasSubstr("metrics.jsonl' was removed"));
  ASSERT_THAT(writer->WriteStep(Step(3)), IsOk());
  EXPECT_EQ(Contents(), absl::StrCat(ToJsonLine(Step(2)), ToJsonLine(Step(3))));
}

// `sed -i`, rsync and many editors write another file and give it the name.
TEST_F(JsonlWriterTest, AFileThatTakesTheNameIsGoneOnWith) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  ASSERT_THAT(writer->WriteStep(Step(2)), IsOk());
  WriteFile(ToJsonLine(Step(1)));
  const absl::Status told = writer->WriteStep(Step(3));
  EXPECT_THAT(told, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(told.message(), HasSubstr("metrics.jsonl' was replaced"));
  ASSERT_THAT(writer->WriteStep(Step(4)), IsOk());
  EXPECT_EQ(Contents(),
            absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(3)), ToJsonLine(Step(4))));
}

TEST_F(JsonlWriterTest, AFileThatTakesTheNameIsFoundBeforeACheckpoint) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  WriteFile(Contents());
  EXPECT_THAT(writer->Sync(), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(writer->WriteStep(Step(2)), IsOk());
  EXPECT_EQ(Contents(), ToJsonLine(Step(1)) + ToJsonLine(Step(2)));
}

TEST_F(JsonlWriterTest, AForeignFileThatTakesTheNameStaysUntilItGoes) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  WriteFile("my diary\n");
  for (int i = 2; i <= 3; ++i) {
    EXPECT_THAT(writer->WriteStep(Step(i)), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(Contents(), "my diary\n");
  }
  ASSERT_THAT(fs_.Remove(path_), IsOk());
  ASSERT_THAT(writer->WriteStep(Step(4)), IsOk());
  EXPECT_EQ(Contents(),
            absl::StrCat(ToJsonLine(Step(2)), ToJsonLine(Step(3)), ToJsonLine(Step(4))));
}

TEST_F(JsonlWriterTest, WhatAWriterHasLeftTheNextOneWrites) {
  FaultFileSystem full(&fs_);
  std::string unwritten;
  {
    const auto writer = OpenOn(full);
    ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
    EXPECT_EQ(writer->Unwritten(), "");
    full.FailAt(0, ENOSPC, /*lasting=*/true);
    EXPECT_FALSE(writer->WriteStep(Step(2)).ok());
    EXPECT_FALSE(writer->WriteEvaluation(Evaluation(2, 1)).ok());
    EXPECT_FALSE(writer->WriteStep(Step(3)).ok());
    unwritten = writer->Unwritten();
  }
  EXPECT_EQ(unwritten, ToJsonLine(Step(2)) + ToJsonLine(Evaluation(2, 1)) + ToJsonLine(Step(3)));
  // The disk stays full while the ranks change once more.
  const StepMetrics last = Step(3);
  {
    const auto writer = JsonlWriter::Open(full, path_, 3, &last, unwritten);
    ASSERT_THAT(writer, IsOk());
    EXPECT_FALSE((*writer)->WriteStep(Step(4)).ok());
    unwritten = (*writer)->Unwritten();
  }
  full.ClearFault();
  const auto writer = JsonlWriter::Open(full, path_, 4, nullptr, unwritten);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->WriteStep(Step(5)), IsOk());
  EXPECT_EQ(Contents(),
            absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(2)), ToJsonLine(Evaluation(2, 1)),
                         ToJsonLine(Step(3)), ToJsonLine(Step(4)), ToJsonLine(Step(5))));
}

// Other ranks may have made the steps of lines that were left, and steps after them.
TEST_F(JsonlWriterTest, ALineThatWasLeftGetsItsPlaceUnlessItsStepIsThere) {
  StepMetrics other = Step(2);
  other.loss = 9;
  WriteFile(absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(2)), ToJsonLine(Step(5)),
                         ToJsonLine(Step(7))));
  const std::string unwritten =
      absl::StrCat(ToJsonLine(Step(4)), ToJsonLine(Step(6)), ToJsonLine(other), ToJsonLine(Step(3)),
                   ToJsonLine(Evaluation(3, 2)), ToJsonLine(Step(4)));
  const auto writer = JsonlWriter::Open(fs_, path_, 5, nullptr, unwritten);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->WriteStep(Step(6)), IsOk());
  EXPECT_EQ(Contents(), absl::StrCat(ToJsonLine(Step(1)), ToJsonLine(Step(2)), ToJsonLine(Step(3)),
                                     ToJsonLine(Evaluation(3, 2)), ToJsonLine(Step(4)),
                                     ToJsonLine(Step(5)), ToJsonLine(Step(6))));
}

TEST_F(JsonlWriterTest, TornLinesAreSkippedWhereverTheyAre) {
  const std::string first = ToJsonLine(Step(1)), second = ToJsonLine(Step(2));
  const std::string zeros(40, '\0');
  // The cases: a part of a record, alone or followed by another record; and sectors that were never
  // written.
  for (const std::string& torn :
       {std::string(), second.substr(0, 1), second.substr(0, 5), second.substr(0, 5) + "{",
        second.substr(0, 13) + "{{", std::string("{{"), second.substr(0, 60),
        second.substr(0, 60) + first.substr(0, first.size() - 1), zeros,
        zeros + second.substr(40, 60), second.substr(0, 60) + zeros}) {
    WriteFile(absl::StrCat(torn, "\n", first, torn, "\n", second, torn));
    const auto history = ParseMetrics(Contents());
    ASSERT_THAT(history, IsOk()) << torn;
    EXPECT_EQ(history->steps.size(), 2) << torn;
    OpenAt(2);
    EXPECT_EQ(Contents(), absl::StrCat(first, second)) << torn;
  }
}

TEST_F(JsonlWriterTest, OpensTheFileThatAPowerCutLeaves) {
  MemoryFileSystem disk;
  auto writer = JsonlWriter::Open(disk, "run/metrics.jsonl", 0);
  ASSERT_THAT(writer, IsOk());
  for (int i = 1; i <= 6; ++i) ASSERT_THAT((*writer)->WriteStep(Step(i)), IsOk());
  ASSERT_THAT((*writer)->Sync(), IsOk());
  const std::string synced = *ReadFileToString(disk, "run/metrics.jsonl");
  for (int i = 7; i <= 12; ++i) ASSERT_THAT((*writer)->WriteStep(Step(i)), IsOk());
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = disk.CrashImage(disk.operation_count(), CrashModel::kTearUnsynced, seed);
    const auto after = JsonlWriter::Open(*image, "run/metrics.jsonl", 6);
    ASSERT_THAT(after, IsOk()) << seed;
    ASSERT_THAT((*after)->opened(), IsOk()) << seed;
    EXPECT_THAT(ReadFileToString(*image, "run/metrics.jsonl"), IsOkAndHolds(synced)) << seed;
  }
}

TEST_F(JsonlWriterTest, LeavesAForeignFileAlone) {
  for (const char* text : {"my diary\n", "{\"iteration\":1,\"lm loss\":2}\nnull\n", "{}\n",
                           "[[[[\n", "{\"iteration\":\"1\",\"lm loss\":2}\n", "my diary",
                           "{\n  \"name\": 1\n}\n", "{\"iteration\":1,\"lm loss\":2}\nmy diary"}) {
    WriteFile(text);
    EXPECT_THAT(
        JsonlWriter::Open(fs_, path_, 9).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a record of metrics")));
    EXPECT_EQ(Contents(), text);
  }
}

TEST_F(JsonlWriterTest, WhereItCannotWriteItSaysSo) {
  const auto writer = JsonlWriter::Open(fs_, "/proc/metrics/metrics.jsonl", 0);
  ASSERT_THAT(writer, IsOk());
  EXPECT_FALSE((*writer)->opened().ok());
  EXPECT_FALSE((*writer)->WriteStep(Step(1)).ok());
  EXPECT_FALSE((*writer)->Sync().ok());
}

TEST_F(JsonlWriterTest, AFileThatAFullDiskKeptClosedIsOpenedLater) {
  StepMetrics repeated = Step(3);
  repeated.loss = 9;
  const std::string before = ToJsonLine(Step(1)) + ToJsonLine(Step(2)) + ToJsonLine(repeated);
  WriteFile(before);
  FaultFileSystem full(&fs_);
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  const auto writer = JsonlWriter::Open(full, path_, 2);
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->opened(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT((*writer)->WriteStep(Step(3)), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Contents(), before);
  full.ClearFault();
  ASSERT_THAT((*writer)->WriteStep(Step(4)), IsOk());
  std::string whole;
  for (int i = 1; i <= 4; ++i) absl::StrAppend(&whole, ToJsonLine(Step(i)));
  EXPECT_EQ(Contents(), whole);
}

TEST_F(JsonlWriterTest, TheLastStepIsWrittenIfItsRecordIsMissing) {
  const std::string whole = ToJsonLine(Step(1)) + ToJsonLine(Step(2)) + ToJsonLine(Step(3));
  const StepMetrics last = Step(2);
  for (const bool is_full : {false, true}) {
    for (const bool is_missing : {false, true}) {
      WriteFile(is_missing ? ToJsonLine(Step(1)) : ToJsonLine(Step(1)) + ToJsonLine(last));
      FaultFileSystem full(&fs_);
      if (is_full) full.FailAt(0, ENOSPC, /*lasting=*/true);
      const auto writer = JsonlWriter::Open(full, path_, 2, &last);
      ASSERT_THAT(writer, IsOk());
      EXPECT_EQ((*writer)->opened().ok(), !is_full);
      full.ClearFault();
      ASSERT_THAT((*writer)->WriteStep(Step(3)), IsOk());
      EXPECT_EQ(Contents(), whole) << is_full << is_missing;
    }
  }
}

}  // namespace
}  // namespace megatron
