#include "megatron/train/metrics/communication_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SpanTotal Total(const char* name, const char* group, int ranks, int64_t count, int64_t bytes,
                int64_t nanoseconds, int64_t waiting) {
  return {name, group, ranks, count, bytes, nanoseconds, waiting};
}

TEST(CommunicationTableTest, CallsOfOneKindOfGroupAndOperationAreAddedUp) {
  StreamTimes compute, beside;
  compute.spans = {Total("optimizer", "", 1, 9, 0, 9000, 0),
                   Total("all-gather", "tp-3", 4, 2, 100, 50, 20),
                   Total("all-reduce", "dp-cp-1", 2, 1, 10, 5, 1)};
  beside.spans = {Total("all-reduce", "dp-cp-1-overlap-0", 2, 3, 30, 9, 0)};
  const std::vector<StreamTimes> streams = {compute, beside};
  const std::vector<CallTimes> calls = CallsOf(streams);
  ASSERT_THAT(calls, SizeIs(3));
  EXPECT_STREQ(calls[0].group.data(), "dp-cp");
  EXPECT_STREQ(calls[1].group.data(), "dp-cp-overlap");
  EXPECT_STREQ(calls[2].group.data(), "tp");
  EXPECT_STREQ(calls[2].operation.data(), "all-gather");
  EXPECT_EQ(calls[1].bytes, 30);
  EXPECT_EQ(calls[2].ranks, 4);
  EXPECT_EQ(calls[2].calls, 2);
  EXPECT_EQ(calls[2].bytes, 400);  // nccl-tests count the gathered tensor
  EXPECT_EQ(calls[2].nanoseconds, 50);
  EXPECT_EQ(calls[2].fastest, 30);
}

CallTimes Call(int64_t calls, int64_t bytes, int64_t nanoseconds, int64_t fastest) {
  CallTimes times;
  std::copy_n("tp", 3, times.group.data());
  std::copy_n("all-reduce", 11, times.operation.data());
  times.ranks = 4;
  times.calls = calls;
  times.bytes = bytes;
  times.nanoseconds = nanoseconds;
  times.fastest = fastest;
  return times;
}

// The first rank is always late: its calls are transfers alone.
TEST(CommunicationTableTest, TransferIsThatOfTheFastestRankAndTheRestIsWaiting) {
  const int64_t second = 1'000'000'000;
  const std::vector<std::vector<CallTimes>> ranks = {
      {Call(1000, 8'000'000'000, 2 * second, 2 * second)},
      {Call(1000, 8'000'000'000, 5 * second, 4 * second)}};
  EXPECT_EQ(FormatCommunicationTable(CommunicationRows(ranks)),
            "# communication of the run, as means over ranks\n"
            "#        group  ranks       operation      calls        size       time   transfer"
            "    waiting    algbw    busbw\n"
            "#                                                      (MiB)        (s)        (s)"
            "        (s)   (GB/s)   (GB/s)\n"
            "            tp      4      all-reduce       1000      7629.4       3.50       2.00"
            "       1.50     4.00     6.00\n");
}

TEST(CommunicationTableTest, ARunWithoutCallsHasNoTable) {
  EXPECT_EQ(FormatCommunicationTable(CommunicationRows(std::vector<std::vector<CallTimes>>(2))),
            "");
  EXPECT_THAT(CallsOf({}), IsEmpty());
}

TEST(CommunicationTableTest, RanksMayHaveUnequalCalls) {
  EXPECT_THAT(RunRanks(3,
                       [](int rank, const ProcessGroup& world) {
                         const std::vector<CallTimes> mine(rank, Call(rank, 8, 5, 5));
                         const auto all = GatherCalls(mine, world);
                         EXPECT_THAT(all, SizeIs(3));
                         for (int i = 0; i < 3; ++i) {
                           EXPECT_THAT(all[i], SizeIs(i));
                           for (const CallTimes& call : all[i]) EXPECT_EQ(call.calls, i);
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

}  // namespace
}  // namespace megatron
