#include "megatron/base/quantity.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(QuantityTest, BytesHaveTheLargestUnitThatTheyFill) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(FormatBytes(int64_t{1} << 52), "4096.00 TiB");
}

TEST(QuantityTest, OneIsSingular) {
  EXPECT_EQ(FormatQuantity(0, "rank"), "0 ranks");
  EXPECT_EQ(FormatQuantity(1, "rank"), "1 rank");
  EXPECT_EQ(FormatQuantity(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace megatron
