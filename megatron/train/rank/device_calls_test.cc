#include "megatron/train/rank/device_calls.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DeviceCallsTest, EachRankTellsItsOwnUntilItEnds) {
  DeviceCalls calls;
  EXPECT_THAT(calls.Of(1), IsEmpty());
  calls.Set(1, [] { return std::vector<std::string>{"call 3"}; });
  EXPECT_THAT(calls.Of(1), ElementsAre("call 3"));
  EXPECT_THAT(calls.Of(0), IsEmpty());
  calls.Set(1, nullptr);
  EXPECT_THAT(calls.Of(1), IsEmpty());
}

}  // namespace
}  // namespace megatron
