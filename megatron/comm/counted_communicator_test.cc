#include "megatron/comm/counted_communicator.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

TEST(CountedCommunicatorTest, CountsWhatEachOperationHasToMove) {
  EXPECT_THAT(RunRanks(4,
                       [](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         BytesSent sent;
                         const ProcessGroup all(Counted(world.communicator(), &sent));
                         std::vector<float> values(16, 1);
                         const Tensor whole(values.data(), DType::kFloat32, {16});
                         const Tensor mine = whole.Slice(0, 4 * rank, 4 * rank + 4);
                         all.AllReduce(whole, ReduceOp::kSum, stream);
                         EXPECT_EQ(sent.Of("world", Collective::kAllReduce), 2 * 3 * 16);
                         EXPECT_EQ(values[5], 4);
                         all.ReduceScatter(whole, mine, stream);
                         EXPECT_EQ(sent.Of("world", Collective::kReduceScatter), 3 * 16);
                         all.AllGather(mine, whole, stream);
                         EXPECT_EQ(sent.Of("world", Collective::kAllGather), 3 * 16);
                         all.Broadcast(whole, 2, stream);
                         EXPECT_EQ(sent.Of("world", Collective::kBroadcast), rank == 2 ? 64 : 0);
                         sent.Reset();
                         MEGATRON_ASSIGN_OR_RETURN(
                             std::shared_ptr<Communicator> pair,
                             all.communicator()->Split({{0, 1}, {2, 3}}, "pair"));
                         ProcessGroup(pair).AllReduce(whole, ReduceOp::kSum, stream);
                         EXPECT_EQ(sent.Of("pair", Collective::kAllReduce), 64);
                         EXPECT_EQ(sent.Total(), 64);
                         return absl::OkStatus();
                       }),
              absl_testing::IsOk());
}

}  // namespace
}  // namespace megatron
