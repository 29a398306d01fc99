#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"

#include <cstddef>
#include <cstdint>

#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

constexpr char32_t kLetters = 0x100 + 68;

struct Alphabet {
  Alphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself =
          (33 <= byte && byte <= 126) || (161 <= byte && byte <= 172) || 174 <= byte;
      letter[byte] = itself ? static_cast<char32_t>(byte) : next++;
    }
    for (int16_t& byte : byte_of) byte = -1;
    for (int byte = 0; byte < 256; ++byte) byte_of[letter[byte]] = static_cast<int16_t>(byte);
  }

  char32_t letter[256];
  int16_t byte_of[kLetters];  // -1 if the letter stands for no byte
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string SpellBytes(absl::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) {
    AppendUtf8(TheAlphabet().letter[static_cast<unsigned char>(byte)], &spelling);
  }
  return spelling;
}

bool AppendSpelledBytes(absl::string_view spelling, std::string* bytes) {
  const size_t old_size = bytes->size();
  for (size_t at = 0; at < spelling.size();) {
    const Utf8Char c = DecodeUtf8(spelling, at);
    if (c.code_point >= kLetters || TheAlphabet().byte_of[c.code_point] < 0) {
      bytes->resize(old_size);
      return false;
    }
    bytes->push_back(static_cast<char>(TheAlphabet().byte_of[c.code_point]));
    at += c.length;
  }
  return true;
}

}  // namespace megatron
