#include "megatron/base/round_up.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(RoundUpTest, ReturnsTheNextMultipleOrTheValueItself) {
  EXPECT_EQ(RoundUp(0, 64), 0);
  EXPECT_EQ(RoundUp(1, 64), 64);
  EXPECT_EQ(RoundUp(64, 64), 64);
  EXPECT_EQ(RoundUp(65, 64), 128);
  EXPECT_EQ(RoundUp(50257, 3), 50259);
}

}  // namespace
}  // namespace megatron
