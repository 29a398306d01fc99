#include "megatron/train/metrics/metrics_writers.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/metrics/jsonl_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::testing::HasSubstr;
using ::testing::Not;

class CountingWriter : public MetricsWriter {
 public:
  explicit CountingWriter(int* steps) : steps_(*steps) {}
  absl::Status WriteStep(const StepMetrics&) override {
    ++steps_;
    return absl::InternalError("never");
  }
  absl::Status WriteEvaluation(const EvaluationMetrics&) override { return absl::OkStatus(); }

 private:
  int& steps_;
};

TEST(MetricsWritersTest, AWriterThatFailsKeepsNobodyFromWriting) {
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  int first = 0, second = 0;
  MetricsWriters::List list;
  list.push_back(std::make_unique<CountingWriter>(&first));
  list.push_back(std::make_unique<CountingWriter>(&second));
  MetricsWriters writers(std::move(list), &console);
  writers.WriteStep({});
  writers.WriteStep({});
  writers.Sync();
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 2);
}

TEST(MetricsWritersTest, OnlyTheRankThatPrintsWrites) {
  MemoryFileSystem disk;
  LoopOptions options;
  options.metrics_file = "run/metrics.jsonl";
  RankProgress progress;
  RankConsole silent(/*prints=*/false, &progress), printing(/*prints=*/true, &progress);
  ASSERT_THAT(OpenMetricsWriters(options, RunStart(), disk, &silent), IsOk());
  EXPECT_FALSE(disk.Stat(options.metrics_file).ok());
  auto writers = OpenMetricsWriters(options, RunStart(), disk, &printing);
  ASSERT_THAT(writers, IsOk());
  writers->WriteStep({});
  EXPECT_THAT(ReadFileToString(disk, options.metrics_file),
              IsOkAndHolds(HasSubstr("\"iteration\":0")));
}

TEST(MetricsWritersTest, AFileThatCannotBeOpenedIsSaidOnceAndWrittenWhenItCanBe) {
  MemoryFileSystem disk;
  FaultFileSystem full(&disk);
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  LoopOptions options;
  options.metrics_file = "run/metrics.jsonl";
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  ::testing::internal::CaptureStdout();
  auto writers = OpenMetricsWriters(options, RunStart(), full, &console);
  ASSERT_THAT(writers, IsOk());
  StepMetrics step;
  step.iteration = 1;
  writers->WriteStep(step);
  EXPECT_EQ(writers->Unwritten(), ToJsonLine(step));
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("logging.metrics_file: "));
  EXPECT_THAT(said, HasSubstr("its lines are written as soon as they can be"));
  EXPECT_THAT(said, Not(HasSubstr("metrics could not be written")));
  full.ClearFault();
  step.iteration = 2;
  writers->WriteStep(step);
  EXPECT_EQ(writers->Unwritten(), "");
  const std::string lines = *ReadFileToString(disk, options.metrics_file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST(MetricsWritersTest, WhatWritersBeforeHaveLeftIsWritten) {
  MemoryFileSystem disk;
  LoopOptions options;
  options.metrics_file = "run/metrics.jsonl";
  StepMetrics step;
  step.iteration = 1;
  RunStart start;
  start.last_iteration = 1;
  start.unwritten = ToJsonLine(step);
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  ASSERT_THAT(OpenMetricsWriters(options, start, disk, &console), IsOk());
  EXPECT_THAT(ReadFileToString(disk, options.metrics_file), IsOkAndHolds(ToJsonLine(step)));
}

TEST(MetricsWritersTest, AFileOfSomethingElseIsAnErrorAndIsLeftAsItIs) {
  MemoryFileSystem disk;
  ASSERT_THAT(WriteFileAtomically(disk, "notes.txt", "mine\nonly\n"), IsOk());
  LoopOptions options;
  options.metrics_file = "notes.txt";
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  const auto writers = OpenMetricsWriters(options, RunStart(), disk, &console);
  EXPECT_THAT(std::string(writers.status().message()), HasSubstr("logging.metrics_file: "));
  EXPECT_THAT(ReadFileToString(disk, "notes.txt"), IsOkAndHolds("mine\nonly\n"));
}

TEST(MetricsWritersTest, ATensorboardThatCannotBeWrittenIsSaidOnceAndLosesNothingElse) {
  MemoryFileSystem disk;
  ASSERT_THAT(WriteFileAtomically(disk, "taken", "a file"), IsOk());
  LoopOptions options;
  options.metrics_file = "run/metrics.jsonl";
  options.tensorboard_dir = "taken";
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  auto writers = OpenMetricsWriters(options, RunStart(), disk, &console);
  ASSERT_THAT(writers, IsOk());
  ::testing::internal::CaptureStdout();
  for (int i = 0; i < 5; ++i) writers->WriteStep({});
  writers->Sync();
  const std::string said = ::testing::internal::GetCapturedStdout();
  const size_t first = said.find("metrics could not be written");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("metrics could not be written", first + 1), std::string::npos) << said;
  const std::string lines = *ReadFileToString(disk, options.metrics_file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5);
}

}  // namespace
}  // namespace megatron
