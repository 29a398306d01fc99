// The patterns by which byte-level vocabularies split text into pieces; merges happen within a
// piece.
//
// Each pattern is a regular expression with which a family of models was trained; here it is a
// hand-written scanner that takes linear time for any text. Letters, numbers, marks and white space
// are Unicode's (15.0). A byte that is not part of valid UTF-8 counts as one symbol, as U+FFFD
// would.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_SPLIT_PATTERN_H_
#define MEGATRON_DATA_TOKENIZER_BPE_SPLIT_PATTERN_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

enum class SplitPattern {
  kGpt2,        // GPT-2, GPT-3, GPT-NeoX, RoBERTa; Hugging Face's ByteLevel with use_regex
  kCl100k,      // GPT-4, Llama 3
  kQwen2,       // cl100k with single digits
  kO200k,       // GPT-4o, Llama 4
  kTekken,      // o200k with single digits and no contractions; Megatron's TikTokenizer v2
  kTiktokenV1,  // Megatron's TikTokenizer v1
  // GPT-2's and GPT-4's patterns in tiktoken's spelling: white space at the end of the text is one
  // piece even if it contains line breaks.
  kCl100kTiktoken,
};

// Returns the length in bytes of the first piece of a text that is not empty. Further calls split
// the rest: pieces do not depend on the text before them.
using FirstPiece = size_t (*)(absl::string_view text);
FirstPiece FirstPieceOf(SplitPattern pattern);

// Separates numbers (\p{N}) from everything else: digit by digit if `individual`, else as runs.
FirstPiece FirstPieceByDigits(bool individual);

// Returns the pattern that a regular expression spells. For others, kInvalidArgument lists the
// known ones.
absl::StatusOr<SplitPattern> FindSplitPattern(absl::string_view regex);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_SPLIT_PATTERN_H_
