#include "megatron/train/metrics/pipeline_timeline_writer.h"

#include <cerrno>
#include <string>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/pipeline/timeline_text.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;

constexpr char kPath[] = "/timeline.txt";
constexpr char kFirst[] = "pipeline 1 1 1 round-robin\n0 F0 0 1\n0 B0 1 3\n";
constexpr char kSecond[] = "pipeline 1 1 1 round-robin\n0 F0 0 2\n0 B0 2 5\n";

StepMetrics Step(const MeasuredSchedule* pipeline, bool logged) {
  StepMetrics step;
  step.pipeline = pipeline;
  if (logged) step.interval.emplace();
  return step;
}

TEST(PipelineTimelineWriterTest, TheFileHoldsTheLastLoggedStep) {
  const absl::StatusOr<MeasuredSchedule> first = ParseTimelineText(kFirst);
  const absl::StatusOr<MeasuredSchedule> second = ParseTimelineText(kSecond);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  MemoryFileSystem disk;
  PipelineTimelineWriter writer(disk, kPath);
  EXPECT_THAT(writer.WriteStep(Step(&*first, /*logged=*/false)), IsOk());
  EXPECT_THAT(writer.WriteStep(Step(nullptr, /*logged=*/true)), IsOk());
  EXPECT_THAT(writer.WriteEvaluation({}), IsOk());
  EXPECT_FALSE(disk.Stat(kPath).ok());
  EXPECT_THAT(writer.WriteStep(Step(&*first, /*logged=*/true)), IsOk());
  EXPECT_THAT(ReadFileToString(disk, kPath), IsOkAndHolds(TimelineText(*first)));
  EXPECT_THAT(writer.WriteStep(Step(&*second, /*logged=*/false)), IsOk());
  EXPECT_THAT(ReadFileToString(disk, kPath), IsOkAndHolds(TimelineText(*first)));
  EXPECT_THAT(writer.WriteStep(Step(&*second, /*logged=*/true)), IsOk());
  EXPECT_THAT(ReadFileToString(disk, kPath), IsOkAndHolds(TimelineText(*second)));
}

TEST(PipelineTimelineWriterTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  const absl::StatusOr<MeasuredSchedule> first = ParseTimelineText(kFirst);
  const absl::StatusOr<MeasuredSchedule> second = ParseTimelineText(kSecond);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  MemoryFileSystem disk;
  EXPECT_THAT(PipelineTimelineWriter(disk, kPath).WriteStep(Step(&*first, /*logged=*/true)),
              IsOk());
  FaultFileSystem full(&disk);
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  EXPECT_FALSE(PipelineTimelineWriter(full, kPath).WriteStep(Step(&*second, /*logged=*/true)).ok());
  EXPECT_THAT(ReadFileToString(disk, kPath), IsOkAndHolds(TimelineText(*first)));
}

}  // namespace
}  // namespace megatron
