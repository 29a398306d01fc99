// What SentencePiece does to a text before it is cut into pieces: the model's rules, white space
// collapsed, and every space made visible as "▁" (U+2581), with one put in front.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_NORMALIZER_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_NORMALIZER_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/piece_trie.h"
#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"

namespace megatron {

constexpr absl::string_view kSentencePieceSpace = "\u2581";

struct SentencePieceNormalizerOptions {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool space_last = false;  // the space that is added stands behind the text
};

// Immutable.
class SentencePieceNormalizer {
 public:
  // What `kept` matches isn't changed.
  SentencePieceNormalizer(PrecompiledCharsmap rules, const SentencePieceNormalizerOptions& options,
                          PieceTrie kept)
      : rules_(std::move(rules)), options_(options), kept_(std::move(kept)) {}

  // Bytes that aren't UTF-8 become U+FFFD. If `origins` is not null it is set to where in `text`
  // each byte of the result comes from, and one number more for its end. O(text).
  std::string Normalize(absl::string_view text, std::vector<size_t>* origins) const;

 private:
  struct Step {
    absl::string_view replacement;
    size_t length = 0;  // of what it replaces
  };
  Step Next(absl::string_view text) const;
  // How many ASCII characters at the beginning of `text` stay as they are. None is a space.
  size_t CountPlain(absl::string_view text) const;

  PrecompiledCharsmap rules_;
  SentencePieceNormalizerOptions options_;
  PieceTrie kept_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_NORMALIZER_H_
