// How byte-level vocabularies cut text into the pieces within which their merges happen.
//
// Each pattern is a regular expression that some family of models was trained with; here it is a
// scanner written by hand, which takes linear time whatever the text is. Letters, numbers, marks
// and white space are Unicode's (15.0). A byte that is no part of valid UTF-8 counts as one symbol,
// as U+FFFD would.
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
  // As tiktoken spells GPT-2's and GPT-4's own: white space that ends the text is one piece even
  // with line breaks inside.
  kCl100kTiktoken,
};

// The length in bytes of the first piece of a text that is not empty. What follows is cut by
// further calls: pieces do not depend on what stands before them.
using FirstPiece = size_t (*)(absl::string_view text);
FirstPiece FirstPieceOf(SplitPattern pattern);

// Numbers (\p{N}) apart from all else: digit by digit if `individual`, else as runs.
FirstPiece FirstPieceByDigits(bool individual);

// The pattern that a regular expression spells. kInvalidArgument, listing the known ones, for
// others.
absl::StatusOr<SplitPattern> FindSplitPattern(absl::string_view regex);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_SPLIT_PATTERN_H_
