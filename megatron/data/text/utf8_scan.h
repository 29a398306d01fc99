// Finds the first invalid byte of UTF-8 text.
#ifndef MEGATRON_DATA_TEXT_UTF8_SCAN_H_
#define MEGATRON_DATA_TEXT_UTF8_SCAN_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the length of the well-formed character at `text`, which ends at `end`. Returns 0 for an
// invalid first byte, a truncated or overlong character, a surrogate, or a number above U+10FFFF.
inline size_t Utf8CharacterLength(const char* text, const char* end) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&byte](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const size_t left = static_cast<size_t>(end - text);
  if (left == 0) return 0;
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return left >= 2 && continues(1) ? 2 : 0;
  if (first < 0xf0) {
    if (left < 3 || !continues(1) || !continues(2)) return 0;
    if (first == 0xe0 && byte(1) < 0xa0) return 0;
    if (first == 0xed && byte(1) >= 0xa0) return 0;
    return 3;
  }
  if (first > 0xf4 || left < 4 || !continues(1) || !continues(2) || !continues(3)) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) >= 0x90) return 0;
  return 4;
}

// Returns the length of the longest prefix of `text` that is valid UTF-8: text.size() if all of it
// is.
inline size_t Utf8PrefixLength(absl::string_view text) {
  const char* const end = text.data() + text.size();
  const char* p = text.data();
  while (p != end) {
    const size_t length = Utf8CharacterLength(p, end);
    if (length == 0) break;
    p += length;
  }
  return static_cast<size_t>(p - text.data());
}

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_UTF8_SCAN_H_
