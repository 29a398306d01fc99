// Characters: UTF-8 steps, the classes that tokenizers' patterns speak of, lower case,
// normalization.
//
// Tables are those of Unicode 15.0 (utf8proc). Bytes that aren't UTF-8 read as U+FFFD, one byte at
// a time: overlong forms, surrogates and code points above U+10FFFF aren't UTF-8. Any number of
// threads may call anything here. Example:
//   const CharClasses& classes = CharClasses::Get();
//   for (size_t i = 0; i < text.size();) {
//     const Utf8Char c = DecodeUtf8(text, i);
//     if (classes.Is(c.code_point, kLetter)) …
//     i += c.length;
//   }
#ifndef MEGATRON_DATA_TOKENIZER_UNICODE_H_
#define MEGATRON_DATA_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

constexpr char32_t kReplacementCharacter = 0xfffd;

struct Utf8Char {
  char32_t code_point = 0;
  uint32_t length = 0;  // in bytes; U+FFFD of length 1 is a byte that isn't UTF-8
};

// Characters that aren't ASCII, in [p, end), which is not empty. Prefer DecodeUtf8.
Utf8Char DecodeLongUtf8(const char* p, const char* end);

// The character at `at` < text.size(). Reads nothing behind the text's end.
inline Utf8Char DecodeUtf8(absl::string_view text, size_t at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  return DecodeLongUtf8(text.data() + at, text.data() + text.size());
}

inline bool IsInvalidByte(const Utf8Char& c) {
  return c.code_point == kReplacementCharacter && c.length == 1;
}

// `code_point` is at most U+10FFFF.
void AppendUtf8(char32_t code_point, std::string* out);

bool IsValidUtf8(absl::string_view text);

// What is no UTF-8 replaced by U+FFFD, byte by byte.
std::string ReplaceInvalidUtf8(absl::string_view text);

// Classes are bits; a class of several is true of characters in any of them. By general category
// unless said otherwise.
enum CharClass : uint32_t {
  kUpper = 1 << 0,            // Lu
  kLower = 1 << 1,            // Ll
  kTitle = 1 << 2,            // Lt
  kModifier = 1 << 3,         // Lm
  kOtherLetter = 1 << 4,      // Lo
  kLetter = 31,               // L
  kNonspacing = 1 << 5,       // Mn
  kOtherMark = 1 << 6,        // Mc, Me
  kMark = 3 << 5,             // M
  kNumber = 1 << 7,           // N: Nd, Nl and No
  kWhiteSpace = 1 << 8,       // the property White_Space, which is \s
  kPunctuation = 1 << 9,      // P
  kSymbol = 1 << 10,          // S
  kControl = 1 << 11,         // Cc
  kFormat = 1 << 12,          // Cf
  kUnassigned = 1 << 13,      // Cn, Cs
  kCjk = 1 << 14,             // the ideographs that BERT makes words of their own
  kSpaceSeparator = 1 << 15,  // Zs
  kStableNfc = 1 << 16,       // starts a piece of text that normalizes alone, and is normalized
  kStableNfd = 1 << 17,       // ditto
  kStableNfkc = 1 << 18,      // ditto
  kStableNfkd = 1 << 19,      // ditto
  kPrivateUse = 1 << 20,      // Co
  kCaseIgnorable = 1 << 21,   // the property Case_Ignorable
  kCased = 1 << 22,           // the property Cased, of what is not case-ignorable
};

// The classes of every code point, in pages of 256. Built at the first use, in some milliseconds.
class CharClasses {
 public:
  static const CharClasses& Get();

  // All bits. `c` is at most U+10FFFF.
  uint32_t operator[](char32_t c) const { return pages_[page_of_[c >> 8]][c & 255]; }
  bool Is(char32_t c, uint32_t classes) const { return ((*this)[c] & classes) != 0; }

 private:
  struct Page {
    uint32_t& operator[](size_t i) { return classes[i]; }
    uint32_t operator[](size_t i) const { return classes[i]; }
    uint32_t classes[256];
  };

  CharClasses();

  std::vector<uint16_t> page_of_;
  std::vector<Page> pages_;
};

// Lower case of each character by itself: no Σ at the end of a word becomes ς. "İ" alone becomes
// two code points. `origins` is as for Normalize.
std::string ToLower(absl::string_view text, std::vector<size_t>* origins = nullptr);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// In time O(n log n), whatever the text. If `origins` is not null it is set to one number for each
// byte of the result, ascending, where in `text` the character begins that it comes from (for a
// composed one, its first; for marks that change places, the first of them), and text.size() at the
// end.
std::string Normalize(NormalizationForm form, absl::string_view text,
                      std::vector<size_t>* origins = nullptr);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_UNICODE_H_
