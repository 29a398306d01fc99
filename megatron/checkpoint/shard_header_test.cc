#include "megatron/checkpoint/shard_header.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

const ShardHeader kHeader = {"0123456789abcdef", 1000, 3, 8, int64_t{5} << 40};

TEST(ShardHeaderTest, ComesBack) {
  const std::string bytes = EncodeShardHeader(kHeader);
  EXPECT_EQ(bytes.size(), static_cast<size_t>(kShardHeaderBytes));
  EXPECT_THAT(DecodeShardHeader(bytes), IsOkAndHolds(kHeader));
  ShardHeader longest = kHeader;
  longest.run_id = std::string(64, 'f');
  EXPECT_THAT(DecodeShardHeader(EncodeShardHeader(longest)), IsOkAndHolds(longest));
}

TEST(ShardHeaderTest, HasTheDocumentedBytes) {
  const std::string bytes = EncodeShardHeader(kHeader);
  EXPECT_EQ(bytes.substr(0, 16), std::string("MEGASHRD\x01\0\0\0\x80\0\0\0", 16));
  EXPECT_EQ(bytes.substr(16, 8), std::string("\xe8\x03\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(24, 8), std::string("\x03\0\0\0\x08\0\0\0", 8));
  EXPECT_EQ(bytes.substr(32, 8), std::string("\0\0\0\0\0\x05\0\0", 8));
  EXPECT_EQ(bytes.substr(40, 64), "0123456789abcdef" + std::string(48, '\0'));
  EXPECT_EQ(bytes.substr(104, 20), std::string(20, '\0'));
}

TEST(ShardHeaderTest, AnyFlippedBitAndAnyTruncationIsDataLoss) {
  std::string bytes = EncodeShardHeader(kHeader);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_THAT(DecodeShardHeader(bytes), StatusIs(absl::StatusCode::kDataLoss)) << bit;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeShardHeader(bytes.substr(0, size)), StatusIs(absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace megatron
