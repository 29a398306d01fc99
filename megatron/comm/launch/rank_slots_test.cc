#include "megatron/comm/launch/rank_slots.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

LaunchResult Killed(const std::string& name) {
  LaunchResult result;
  result.exit_code = 137;
  result.signal = 9;
  result.name = name;
  return result;
}

TEST(RankSlotsTest, APlaceWhoseRankFailsTwiceIsLeftOut) {
  RankSlots slots(4);
  slots.Fail(Killed("rank 1"));
  EXPECT_EQ(slots.sound(), 4);
  slots.Take(4);
  slots.Fail(Killed("rank 1"));
  EXPECT_EQ(slots.sound(), 3);
  slots.Take(2);
  EXPECT_THAT(slots.Environment({}), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "0,2")));
  EXPECT_THAT(slots.Environment({{"CUDA_VISIBLE_DEVICES", "4,5,6,7"}}),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "4,6")));
  // Rank 1 is at the third place now.
  slots.Fail(Killed("rank 1"));
  slots.Fail(Killed("rank 1"));
  EXPECT_EQ(slots.sound(), 2);
  slots.Take(2);
  EXPECT_THAT(slots.Environment({}), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "0,3")));
}

TEST(RankSlotsTest, WhereTooFewAreSoundAllAreTaken) {
  RankSlots slots(2);
  for (int i = 0; i < 3; ++i) slots.Fail(Killed("rank 0"));
  EXPECT_EQ(slots.sound(), 1);
  slots.Take(2);
  EXPECT_THAT(slots.Environment({}), IsEmpty());
}

TEST(RankSlotsTest, RanksThatOnlyMissedEachOtherAreNotToBlame) {
  RankSlots slots(2);
  LaunchResult result;
  result.exit_code = 30;
  result.name = "rank 0";
  result.is_consequence = true;
  for (int i = 0; i < 3; ++i) slots.Fail(result);
  EXPECT_EQ(slots.sound(), 2);
  result.killed = {"rank 1"};
  for (int i = 0; i < 2; ++i) slots.Fail(result);
  EXPECT_EQ(slots.sound(), 1);
}

}  // namespace
}  // namespace megatron
