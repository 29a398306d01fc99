#include "megatron/data/text/utf8_scan.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// Encodes a code point by the definition: the shortest form of a code point that is no surrogate.
std::string Encode(uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

size_t LengthOf(const std::string& text) {
  return Utf8CharacterLength(text.data(), text.data() + text.size());
}

TEST(Utf8ScanTest, EveryCodePointExceptSurrogatesHasOneValidForm) {
  for (uint32_t c = 0; c <= 0x110000; ++c) {
    const std::string form = Encode(c);
    const bool good = (c < 0xd800 || c >= 0xe000) && c <= 0x10ffff;
    ASSERT_EQ(LengthOf(form), good ? form.size() : 0) << c;
    ASSERT_EQ(LengthOf(form.substr(0, form.size() - 1)), 0u) << c;
    ASSERT_EQ(LengthOf(form + "\x80"), good ? form.size() : 0) << c;
  }
}

TEST(Utf8ScanTest, OverlongFormsAndInvalidBytesHaveLengthZero) {
  for (const char* bytes :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\x80", "\xbf",
        "\xf5\x80\x80\x80", "\xfe", "\xff", "\xc3(", "\xe2\x82(", "\xf0\x9f\x98("}) {
    EXPECT_EQ(LengthOf(bytes), 0u) << bytes;
  }
  EXPECT_EQ(LengthOf(std::string(1, '\0')), 1u);
}

TEST(Utf8ScanTest, ThePrefixEndsAtTheFirstBadByte) {
  EXPECT_EQ(Utf8PrefixLength(""), 0u);
  EXPECT_EQ(Utf8PrefixLength("aé日😀"), 10u);
  EXPECT_EQ(Utf8PrefixLength("aé\xff日"), 3u);
}

}  // namespace
}  // namespace megatron
