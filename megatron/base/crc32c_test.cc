#include "megatron/base/crc32c.h"

#include <algorithm>
#include <string>

#include "absl/crc/crc32c.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(Crc32cTest, ValuesAreThoseOfRfc3720) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32cTest, ExtendingEqualsComputingAtOnceForEveryCut) {
  std::string data;
  for (int i = 0; i < 1000; ++i) data.push_back(static_cast<char>(i * 37));
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(data.substr(0, cut)), data.substr(cut)), Crc32c(data));
  }
}

TEST(Crc32cTest, LongDataGivesTheSameValueAsItsPieces) {
  std::string data(1000003, '\0');
  uint32_t random = 1;
  for (char& c : data) c = static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
  for (size_t size : {size_t{24575}, size_t{24576}, size_t{24577}, data.size()}) {
    uint32_t crc = 0;
    for (size_t i = 0; i < size; i += 1000) {
      crc = ExtendCrc32c(crc, absl::string_view(data).substr(i, std::min<size_t>(1000, size - i)));
    }
    EXPECT_EQ(Crc32c(absl::string_view(data).substr(0, size)), crc) << size;
    EXPECT_EQ(ExtendCrc32c(123, absl::string_view(data).substr(0, size)),
              ExtendCrc32c(ExtendCrc32c(123, absl::string_view(data).substr(0, 7)),
                           absl::string_view(data).substr(7, size - 7)));
  }
}

TEST(Crc32cTest, AgreesWithAbseilAtEveryLength) {
  std::string data;
  for (int i = 0; i < 300; ++i) data.push_back(static_cast<char>(i * i * 31));
  for (size_t size = 0; size <= data.size(); ++size) {
    const absl::string_view piece = absl::string_view(data).substr(0, size);
    EXPECT_EQ(Crc32c(piece), static_cast<uint32_t>(absl::ComputeCrc32c(piece))) << size;
  }
}

TEST(Crc32cTest, EveryFlippedBitChangesTheChecksum) {
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
