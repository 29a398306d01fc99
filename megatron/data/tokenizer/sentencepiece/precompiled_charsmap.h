// The normalization rules inside SentencePiece models and Hugging Face's "Precompiled" normalizer:
// a map from strings to strings, compiled into a Darts double-array trie.
//
//   u32 trie_bytes | u32 units[trie_bytes / 4] | strings, each ended by a zero byte
//
// little-endian; a leaf's value is an offset into the strings. Nothing in the bytes makes a look-up
// read outside of them. Immutable.
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
    size_t length = 0;              // of what the rule replaces; 0: no rule
    absl::string_view replacement;  // valid as long as the map
  };

  // No rules.
  PrecompiledCharsmap() = default;
  // `bytes` may be empty: no rules. kInvalidArgument where they can't be such a map, or a string is
  // longer than 1024 bytes.
  static absl::StatusOr<PrecompiledCharsmap> Create(absl::string_view bytes);

  // The rule for the longest prefix of `text` that has one, as SentencePiece applies them.
  Rule Longest(absl::string_view text) const;
  // The rule for the shortest prefix. Hugging Face replaces a whole text by it.
  Rule Shortest(absl::string_view text) const;

  // The bytes of the longest text that a rule puts in.
  size_t longest_replacement() const { return longest_replacement_; }

  // Whether an ASCII character before another ASCII character surely stays as it is.
  bool Keeps(unsigned char c) const { return c < 128 && !changed_[c]; }

 private:
  template <bool kLongest>
  Rule Find(absl::string_view text) const;
  // Whether a rule may replace ASCII's `c`, alone or with another ASCII character behind it.
  bool MayChange(unsigned char c) const;

  std::vector<uint32_t> units_;
  std::string strings_;  // ends with a zero byte
  size_t longest_replacement_ = 0;
  std::bitset<128> changed_;
};

// As Hugging Face's "Precompiled" normalizer: each grapheme of less than 6 bytes by its rule, else
// each of its characters by theirs. `text` is valid UTF-8. `origins` as for Normalize (unicode.h).
std::string NormalizePrecompiled(const PrecompiledCharsmap& map, absl::string_view text,
                                 std::vector<size_t>* origins = nullptr);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_PRECOMPILED_CHARSMAP_H_
