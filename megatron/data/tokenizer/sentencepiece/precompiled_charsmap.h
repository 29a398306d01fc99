// The normalization rules inside SentencePiece models and Hugging Face's "Precompiled" normalizer:
// a map from strings to strings, compiled into a Darts double-array trie.
//
//   u32 trie_bytes | u32 units[trie_bytes / 4] | strings, each ended by a zero byte
//
// Numbers are little-endian; a leaf's value is an offset into the strings. Look-ups stay inside the
// bytes, whatever they are. The map is immutable.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_PRECOMPILED_CHARSMAP_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_PRECOMPILED_CHARSMAP_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

class PrecompiledCharsmap {
 public:
  struct Rule {
    size_t length = 0;              // length of the replaced text; 0: no rule
    absl::string_view replacement;  // valid as long as the map
  };

  // Creates a map without rules.
  PrecompiledCharsmap() = default;
  // Creates a map of `bytes`; empty bytes mean no rules. kInvalidArgument if they are not such a
  // map, or if a string is longer than 1024 bytes.
  static absl::StatusOr<PrecompiledCharsmap> Create(absl::string_view bytes);

  // Returns the rule for the longest prefix of `text` that has one, as SentencePiece applies them.
  Rule Longest(absl::string_view text) const;
  // Returns the rule for the shortest prefix. Hugging Face replaces a whole text by it.
  Rule Shortest(absl::string_view text) const;

  // The length in bytes of the longest replacement.
  size_t longest_replacement() const { return longest_replacement_; }

  // Returns whether an ASCII character before another ASCII character is certainly unchanged.
  bool Keeps(unsigned char c) const { return c < 128 && !changed_[c]; }

 private:
  template <bool kLongest>
  Rule Find(absl::string_view text) const;
  // Returns whether a rule may replace ASCII's `c`, alone or followed by another ASCII character.
  bool MayChange(unsigned char c) const;

  std::vector<uint32_t> units_;
  std::string strings_;  // ends with a zero byte
  size_t longest_replacement_ = 0;
  std::bitset<128> changed_;
};

// Normalizes like Hugging Face's "Precompiled" normalizer: each grapheme of less than 6 bytes by
// its rule, else each of its characters by theirs. `text` is valid UTF-8. `origins` is as for
// NormalizeUnicode (unicode.h).
std::string NormalizePrecompiled(const PrecompiledCharsmap& map, absl::string_view text,
                                 std::vector<size_t>* origins = nullptr);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_PRECOMPILED_CHARSMAP_H_
