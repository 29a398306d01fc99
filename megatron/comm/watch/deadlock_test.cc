#include "megatron/comm/watch/deadlock.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

WaitingCall Call(std::vector<int> awaited, uint64_t serial = 1) {
  WaitingCall call;
  call.serial = serial;
  call.awaited = std::move(awaited);
  return call;
}

std::vector<int> RanksOf(const WaitingRanks& deadlock) {
  std::vector<int> ranks;
  for (const auto& [rank, calls] : deadlock) ranks.push_back(rank);
  return ranks;
}

TEST(DeadlockTest, TwoRanksInCallsOfDifferentGroupsAreFound) {
  EXPECT_THAT(RanksOf(FindDeadlock({{0, {Call({1})}}, {1, {Call({0})}}})), ElementsAre(0, 1));
}

TEST(DeadlockTest, ARingIsFoundWithoutThoseThatOnlyWaitForIt) {
  // 0 and 2 wait for ranks of the ring 1 -> 3 -> 4 -> 1.
  EXPECT_THAT(RanksOf(FindDeadlock({{0, {Call({3})}},
                                    {1, {Call({3, 7})}},
                                    {2, {Call({0})}},
                                    {3, {Call({9, 4})}},
                                    {4, {Call({1})}}})),
              ElementsAre(1, 3, 4));
}

TEST(DeadlockTest, WhoeverWaitsForARankThatWorksWillGoOn) {
  EXPECT_THAT(FindDeadlock({}), IsEmpty());
  EXPECT_THAT(FindDeadlock({{0, {Call({1})}}}), IsEmpty());
  EXPECT_THAT(FindDeadlock({{0, {Call({1})}}, {1, {Call({2})}}, {3, {Call({0})}}}), IsEmpty());
}

TEST(DeadlockTest, ARankWithACallThatGoesOnIsNotBlocked) {
  // Moving data, or waiting for a rank that works.
  EXPECT_THAT(FindDeadlock({{0, {Call({1}), Call({})}}, {1, {Call({0})}}}), IsEmpty());
  EXPECT_THAT(FindDeadlock({{0, {Call({1}), Call({2})}}, {1, {Call({0})}}}), IsEmpty());
}

TEST(DeadlockTest, OfARankWithSeveralCallsAllAreHeldUp) {
  EXPECT_THAT(
      RanksOf(FindDeadlock({{0, {Call({1}), Call({2})}}, {1, {Call({0})}}, {2, {Call({1})}}})),
      ElementsAre(0, 1, 2));
}

TEST(DeadlockTest, CallsAreTheSameWhileTheyAwaitTheSameRanks) {
  EXPECT_TRUE(SameCalls({Call({1, 2}, 7)}, {Call({1, 2}, 7)}));
  EXPECT_FALSE(SameCalls({Call({1, 2}, 7)}, {Call({1, 2}, 8)}));
  EXPECT_FALSE(SameCalls({Call({1, 2}, 7)}, {Call({2}, 7)}));
  EXPECT_FALSE(SameCalls({Call({1, 2}, 7)}, {}));
}

TEST(DeadlockTest, TheTextSaysWhoIsInWhichCallForWhom) {
  WaitingCall a = Call({1, 2}), b = Call({0});
  a.what = "rank 0 of tp-0 (world rank 0) was in call 3";
  b.what = "rank 1 of dp-0 (world rank 1) was in call 9";
  EXPECT_EQ(DescribeDeadlock({{0, {a}}, {1, {b}}}),
            "ranks wait for each other: rank 0 of tp-0 (world rank 0) was in call 3, for world "
            "rank 1; rank 1 of dp-0 (world rank 1) was in call 9, for world rank 0");
}

TEST(DeadlockTest, TheTextOfManyRanksEnds) {
  WaitingRanks ring;
  for (int rank = 0; rank < 100; ++rank) ring[rank] = {Call({(rank + 1) % 100})};
  EXPECT_THAT(FindDeadlock(ring), SizeIs(100));
  EXPECT_THAT(DescribeDeadlock(ring), EndsWith(", for world rank 16; and 84 more"));
}

TEST(DeadlockTest, CallsTravelAndOtherBytesAreRefused) {
  WaitingCall call = Call({3, 1}, 42);
  call.what = "an exchange";
  const std::string bytes = EncodeWaitingCalls({call, Call({})});
  const auto decoded = DecodeWaitingCalls(bytes);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_TRUE(SameCalls(*decoded, {call, Call({})}));
  EXPECT_EQ((*decoded)[0].what, "an exchange");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeWaitingCalls(bytes.substr(0, size)), Not(IsOk())) << size;
  }
  EXPECT_THAT(DecodeWaitingCalls(bytes + "x"), Not(IsOk()));
}

TEST(DeadlockTest, BroadcastsStayShortHoweverManyRanksAreAwaited) {
  WaitingCall call = Call(std::vector<int>(100000, 5));
  call.what = std::string(100000, 'x');
  const std::string bytes = EncodeWaitingCalls(std::vector<WaitingCall>(1000, call));
  EXPECT_LT(bytes.size(), 128u << 10);
  EXPECT_THAT(DecodeWaitingCalls(bytes), absl_testing::IsOkAndHolds(SizeIs(64)));
}

}  // namespace
}  // namespace megatron
