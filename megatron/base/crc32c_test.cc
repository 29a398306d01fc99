#include "megatron/base/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(Crc32cTest, GivesTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32cTest, ExtendingEqualsComputingAtOnceWhereverTheCutIs) {
  std::string data;
  for (int i = 0; i < 1000; ++i) data.push_back(static_cast<char>(i * 37));
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(data.substr(0, cut)), data.substr(cut)), Crc32c(data));
  }
}

TEST(Crc32cTest, FindsEverySingleFlippedBit) {
  std::string data(257, 'x');
  const uint32_t crc = Crc32c(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_NE(Crc32c(data), crc);
    data[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace megatron
