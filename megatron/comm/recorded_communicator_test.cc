#include "megatron/comm/recorded_communicator.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

// Each rank makes calls of two groups with its number, or rank 1 with another one.
absl::Status CallOthers(int rank, const ProcessGroup& world, float given, CallRecord* record) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const ProcessGroup all(Recorded(world.communicator(), record));
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> pair,
                            all.communicator()->Split({{0, 1}, {2, 3}}, "pair"));
  const ProcessGroup two(std::move(pair));
  std::vector<float> mine(4, given), theirs(16);
  const Tensor given_4(mine.data(), DType::kFloat32, {4});
  record->Start();
  two.AllReduce(given_4, ReduceOp::kSum, stream);
  all.AllGather(given_4, Tensor(theirs.data(), DType::kFloat32, {16}), stream);
  all.Broadcast(given_4, 2, stream);
  const Tensor sent = Tensor(mine.data(), DType::kFloat32, {2});
  const Tensor got = Tensor(theirs.data(), DType::kFloat32, {2});
  all.Exchange({{(rank + 1) % 4, sent}}, {{(rank + 3) % 4, got}}, stream);
  return world.status();
}

std::vector<RecordedCall> CallsOf(int rank, const ProcessGroup& world, float given) {
  CallRecord record;
  EXPECT_THAT(CallOthers(rank, world, given, &record), absl_testing::IsOk());
  return record.Stop();
}

TEST(RecordedCommunicatorTest, TellsWhatIsGivenAndWhatIsGot) {
  EXPECT_THAT(RunRanks(4,
                       [](int rank, const ProcessGroup& world) -> absl::Status {
                         const auto first = CallsOf(rank, world, 1.5f * rank);
                         const auto same = CallsOf(rank, world, 1.5f * rank);
                         const auto other = CallsOf(rank, world, rank == 1 ? 7 : 1.5f * rank);
                         EXPECT_EQ(first.size(), 4u);
                         EXPECT_EQ(same.size(), 4u);
                         EXPECT_EQ(other.size(), 4u);
                         for (size_t i = 0; i < 4; ++i) {
                           EXPECT_EQ(first[i].group, same[i].group);
                           EXPECT_EQ(first[i].given, same[i].given) << first[i].call;
                           EXPECT_EQ(first[i].got, same[i].got) << first[i].call;
                           EXPECT_LT(first[i].began, first[i].ended);
                         }
                         // The group "pair-0" of ranks 0 and 1 comes before "world".
                         EXPECT_EQ(first[0].group, rank < 2 ? "pair-0" : "pair-1");
                         EXPECT_EQ(first[0].given != other[0].given, rank == 1);
                         EXPECT_EQ(first[0].got != other[0].got, rank < 2);
                         // Both give the sum to all, and all get it.
                         EXPECT_EQ(first[1].given != other[1].given, rank < 2);
                         EXPECT_NE(first[1].got, other[1].got);
                         EXPECT_EQ(first[2].given, other[2].given);
                         EXPECT_EQ(first[2].got, other[2].got);
                         return absl::OkStatus();
                       }),
              absl_testing::IsOk());
}

TEST(RecordedCommunicatorTest, RecordsNothingWhileItIsOff) {
  EXPECT_THAT(RunRanks(2,
                       [](int, const ProcessGroup& world) -> absl::Status {
                         CallRecord record;
                         ThreadPool pool(1);
                         const ProcessGroup all(Recorded(world.communicator(), &record));
                         all.Barrier(Stream::Cpu(&pool));
                         EXPECT_TRUE(record.Stop().empty());
                         return world.status();
                       }),
              absl_testing::IsOk());
}

}  // namespace
}  // namespace megatron
