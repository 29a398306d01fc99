// Unicode for tokenizers: decoding UTF-8, the character classes that patterns use, lower case, and
// normalization.
//
//   const CharClasses& classes = CharClasses::Get();
//   for (size_t i = 0; i < text.size();) {
//     const Utf8Char c = DecodeUtf8(text, i);
//     if (classes.Is(c.code_point, kLetter)) …
//     i += c.length;
//   }
//
// The tables are those of Unicode 15.0 (utf8proc). Invalid UTF-8 is read as U+FFFD, one byte at a
// time; overlong forms, surrogates and code points above U+10FFFF are invalid. Any number of
// threads may call these functions.
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
  uint32_t length = 0;  // number of bytes; U+FFFD of length 1 is an invalid byte
};

// Decodes a character that is not ASCII from [p, end), which is not empty. Prefer DecodeUtf8.
Utf8Char DecodeLongUtf8(const char* p, const char* end);

// Decodes the character at `at`, which is less than text.size(). Reads nothing past the text's end.
inline Utf8Char DecodeUtf8(absl::string_view text, size_t at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  return DecodeLongUtf8(text.data() + at, text.data() + text.size());
}

inline bool IsInvalidByte(const Utf8Char& c) {
  return c.code_point == kReplacementCharacter && c.length == 1;
}

// Requires that `code_point` is at most U+10FFFF.
void AppendUtf8(char32_t code_point, std::string* out);

bool IsValidUtf8(absl::string_view text);

// Returns the text with each invalid byte replaced by U+FFFD.
std::string ReplaceInvalidUtf8(absl::string_view text);

// Classes are bits; a combination of bits means characters in any of the classes. Unless stated
// otherwise, a class is a general category.
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
  kCjk = 1 << 14,             // the ideographs that BERT treats as separate words
  kSpaceSeparator = 1 << 15,  // Zs
  kStableNfc = 1 << 16,   // starts a part that normalizes independently, and is itself normalized
  kStableNfd = 1 << 17,   // ditto
  kStableNfkc = 1 << 18,  // ditto
  kStableNfkd = 1 << 19,  // ditto
  kPrivateUse = 1 << 20,  // Co
  kCaseIgnorable = 1 << 21,  // the property Case_Ignorable
  kCased = 1 << 22,          // the property Cased, except for case-ignorable characters
};

// The classes of every code point, in pages of 256. The table is built at the first use, in some
// milliseconds.
class CharClasses {
 public:
  static const CharClasses& Get();

  // Returns all bits of `c`, which is at most U+10FFFF.
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

// Returns the lower case of each character by itself: Σ at the end of a word does not become ς.
// Only "İ" becomes two code points. `origins` is as for NormalizeUnicode.
std::string ToLower(absl::string_view text, std::vector<size_t>* origins = nullptr);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns the normalized text, in time O(n log n) for any text. If `origins` is not null, it is set
// to one number for each byte of the result, in ascending order, and text.size() at the end. The
// number is the position in `text` of the character that the byte comes from (for a composed
// character, its first part; for marks that are reordered, the first of them).
std::string NormalizeUnicode(NormalizationForm form, absl::string_view text,
                             std::vector<size_t>* origins = nullptr);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_UNICODE_H_
