// The normalization that SentencePiece applies before it splits a text into pieces: the model's
// rules are applied, white space is collapsed, and every space becomes "▁" (U+2581), with one added
// in front.
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
  bool space_last = false;  // the added space is after the text
};

// A normalizer is immutable.
class SentencePieceNormalizer {
 public:
  // Text that `kept` matches is not changed.
  SentencePieceNormalizer(PrecompiledCharsmap rules, const SentencePieceNormalizerOptions& options,
                          PieceTrie kept)
      : rules_(std::move(rules)), options_(options), kept_(std::move(kept)) {}

  // Returns the normalized text. Invalid UTF-8 bytes become U+FFFD. If `origins` is not null, it is
  // set to the position in `text` that each byte of the result comes from, and one more number for
  // its end. The time is O(text).
  std::string Normalize(absl::string_view text, std::vector<size_t>* origins) const;

 private:
  struct Step {
    absl::string_view replacement;
    size_t length = 0;  // length of the replaced text
  };
  Step Next(absl::string_view text) const;
  // Returns how many ASCII characters at the beginning of `text` are unchanged; none is a space.
  size_t CountPlain(absl::string_view text) const;

  PrecompiledCharsmap rules_;
  SentencePieceNormalizerOptions options_;
  PieceTrie kept_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_NORMALIZER_H_
