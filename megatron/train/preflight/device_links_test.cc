// The tests run on the emulated device, which all ranks share.
#include "megatron/train/preflight/device_links.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

RunOptions Ranks(int data) {
  RunOptions options;
  options.parallel.data = data;
  return options;
}

TEST(DeviceLinksTest, ARankAloneNeedsNone) {
  const auto links = LinkThreads(Ranks(1));
  ASSERT_THAT(links, IsOk());
  EXPECT_FALSE(links->nccl);
  EXPECT_EQ(links->text, "");
}

TEST(DeviceLinksTest, ThreadsThatShareAGpuGoThroughTheHost) {
  const auto links = LinkThreads(Ranks(2));
  ASSERT_THAT(links, IsOk());
  EXPECT_FALSE(links->nccl);
  EXPECT_EQ(links->text, "ranks share a GPU, through host memory");
}

TEST(DeviceLinksTest, NcclIsRefusedWhereRanksShareAGpu) {
  RunOptions options = Ranks(2);
  options.ranks.backend = DistributedBackend::kNccl;
  EXPECT_THAT(LinkThreads(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("NCCL takes a GPU for each rank")));
}

TEST(DeviceLinksTest, OverlapIsRefusedWithoutNccl) {
  RunOptions gradients = Ranks(2), weights = Ranks(2);
  gradients.trainer.data_parallel.overlap_grad_reduce = true;
  weights.trainer.data_parallel.overlap_param_gather = true;
  EXPECT_THAT(LinkThreads(gradients),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlap_grad_reduce")));
  EXPECT_THAT(LinkThreads(weights),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlap_param_gather")));
}

TEST(DeviceLinksTest, ProcessesFindOutThatTheyShareAGpu) {
  const absl::Status status = RunRanks(3, [](int rank, const ProcessGroup& all) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const DeviceLinks links, LinkProcesses(Ranks(3), rank, all));
    EXPECT_FALSE(links.nccl);
    EXPECT_THAT(links.text, HasSubstr("share a GPU"));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(DeviceLinksTest, ProcessesKnowWithWhomTheyShareTheirGpu) {
  const absl::Status status = RunRanks(3, [](int rank, const ProcessGroup& all) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<int> same, ProcessesOnSameGpu(rank, all));
    EXPECT_EQ(same, std::vector<int>({0, 1, 2}));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(DeviceLinksTest, RanksShareGpusOutByTheirNumberOnAMachine) {
  EXPECT_EQ(DeviceOfRank(0), 0);
  EXPECT_EQ(DeviceOfRank(5), 0);
}

}  // namespace
}  // namespace megatron
