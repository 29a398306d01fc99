#include "megatron/train/preflight/check_memory.h"

#include <cstdint>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

RunPlan PlanOf(int64_t bytes_of_each_rank) {
  RunPlan plan;
  plan.stages.resize(1);
  plan.stages[0].memory["weights"] = bytes_of_each_rank;
  plan.ranks_per_stage = 2;
  plan.data_bytes = 10;
  plan.program_bytes = 1;
  return plan;
}

RunOptions TwoRanks() {
  RunOptions options;
  options.parallel.data = 2;
  return options;
}

TEST(CheckMemoryTest, ProcessesHaveTheirOwnDataAndProgram) {
  RunOptions options = TwoRanks();
  EXPECT_EQ(HostBytes(options, PlanOf(100), 2), 2 * 100 + 11);
  options.ranks.processes = true;
  EXPECT_EQ(HostBytes(options, PlanOf(100), 2), 2 * (100 + 11));
  EXPECT_EQ(HostBytes(options, PlanOf(100), 1), 100 + 11);
}

TEST(CheckMemoryTest, ARunThatFitsPasses) {
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(1), 2), IsOk());
  EXPECT_THAT(CheckFits(100, 100, /*on_gpus=*/true), IsOk());
  EXPECT_THAT(CheckFits(100, std::nullopt, /*on_gpus=*/false), IsOk());
}

TEST(CheckMemoryTest, SaysHowMuchIsMissing) {
  EXPECT_THAT(CheckFits(2048, 1024, /*on_gpus=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("takes 2.00 KiB of the GPUs' memory and 1.00 KiB are available")));
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(int64_t{1} << 60), 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dry_run says")));
}

}  // namespace
}  // namespace megatron
