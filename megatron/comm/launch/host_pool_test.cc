#include "megatron/comm/launch/host_pool.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Text(const HostPool& pool) {
  return absl::StrJoin(pool.Chosen(), " ", [](std::string* out, const HostSlots& host) {
    absl::StrAppend(out, host.host, ":", absl::StrJoin(host.slots, ","));
  });
}

TEST(HostPoolTest, AHostThatFailsGivesItsPlaceToASpare) {
  HostPool pool({{"a", {0, 1}}, {"b", {0, 1}}, {"small", {0}}, {"c", {0, 1, 2}}}, 2);
  EXPECT_EQ(Text(pool), "a:0,1 b:0,1");
  pool.Fail({"a"});
  EXPECT_EQ(Text(pool), "c:0,1 b:0,1");
  // All who could take b's place have failed as often.
  pool.Fail({"c"});
  pool.Fail({"b"});
  EXPECT_EQ(Text(pool), "c:0,1 b:0,1");
  // b has failed twice and a once.
  pool.Fail({"b"});
  EXPECT_EQ(Text(pool), "c:0,1 a:0,1");
}

TEST(HostPoolTest, WithoutSparesAllHostsStay) {
  HostPool pool({{"a", {0}}, {"b", {3, 5}}}, -1);
  for (int i = 0; i < 3; ++i) pool.Fail({"a", "unknown"});
  EXPECT_EQ(Text(pool), "a:0 b:3,5");
}

TEST(HostPoolTest, AJobThatCanShrinkGivesUpTheHostThatFailedTwice) {
  HostPool pool({{"a", {0}}, {"b", {0}}, {"c", {0}}, {"spare", {0}}}, 3, 2);
  pool.Fail({"a"});
  EXPECT_EQ(Text(pool), "spare:0 b:0 c:0");
  pool.Fail({"b"});
  EXPECT_EQ(Text(pool), "spare:0 b:0 c:0");
  EXPECT_THAT(pool.LeftOut(), IsEmpty());
  pool.Fail({"spare"});
  pool.Fail({"spare"});
  // a has failed once, and takes the place.
  EXPECT_EQ(Text(pool), "a:0 b:0 c:0");
  pool.Fail({"b"});
  EXPECT_EQ(Text(pool), "a:0 c:0");
  EXPECT_THAT(pool.LeftOut(), ElementsAre("b"));
  // Two are the least.
  for (int i = 0; i < 3; ++i) pool.Fail({"a", "c"});
  EXPECT_EQ(pool.Chosen().size(), 2u);
}

TEST(HostPoolTest, AHostThatWasLeftOutIsTakenBackUntilItFailsAgain) {
  HostPool pool({{"a", {0, 1}}, {"b", {0, 1}}}, 2, 1);
  for (int i = 0; i < 2; ++i) pool.Fail({"a"});
  EXPECT_EQ(Text(pool), "b:0,1");
  pool.TakeBack("unknown");
  pool.TakeBack("a");
  EXPECT_EQ(Text(pool), "b:0,1 a:0,1");
  EXPECT_THAT(pool.LeftOut(), IsEmpty());
  pool.Fail({"a"});
  EXPECT_EQ(Text(pool), "b:0,1");
}

TEST(HostPoolTest, APlaceIsFilledAgainWhileTheJobGoesOn) {
  HostPool pool({{"a", {0, 1}}, {"b", {0, 1}}, {"small", {0}}, {"spare", {0, 1, 2}}}, 2, 1);
  EXPECT_EQ(pool.Replace(1).host, "spare");
  EXPECT_EQ(Text(pool), "a:0,1 spare:0,1");
  // The other one has failed as often.
  EXPECT_EQ(pool.Replace(1).host, "spare");
  EXPECT_EQ(pool.Replace(1).host, "b");
  // It is not given up, though it has failed twice, as the spare has.
  EXPECT_EQ(pool.Replace(1).host, "b");
  EXPECT_EQ(pool.Replace(1).host, "spare");
  EXPECT_EQ(Text(pool), "a:0,1 spare:0,1");
}

TEST(HostPoolTest, NeighboursThatFailTogetherAreBothGivenUp) {
  HostPool pool({{"a", {0}}, {"b", {0}}, {"c", {0, 1}}}, -1, 1);
  pool.Fail({"a", "b"});
  EXPECT_EQ(Text(pool), "a:0 b:0 c:0,1");
  pool.Fail({"a", "b"});
  EXPECT_EQ(Text(pool), "c:0,1");
}

TEST(HostPoolTest, TwoHostsThatFailTogetherGetTwoSpares) {
  HostPool pool({{"a", {0}}, {"b", {0}}, {"c", {0}}, {"d", {0}}}, 2);
  pool.Fail({"a", "b"});
  EXPECT_EQ(Text(pool), "c:0 d:0");
}

}  // namespace
}  // namespace megatron
