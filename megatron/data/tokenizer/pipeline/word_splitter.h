// Cuts of text into words, as Hugging Face's pre-tokenizers make them for models that are not
// byte-level.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_SPLITTER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_SPLITTER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// A word, in its spelling for the model.
struct Word {
  std::string text;
  size_t begin = 0;  // where in the section it begins
  // If wanted: for each byte of the text, and for its end, where in the section it comes from.
  std::vector<size_t> origins;
};

// A step: each word becomes words. The first step gets the whole section as one word.
using WordStep = std::function<void(std::vector<Word>* words)>;

// Words are the spans that `split` returns.
WordStep SplitStep(std::function<std::vector<TextSpan>(absl::string_view)> split);

// Runs of what is no white space.
std::vector<TextSpan> SplitWhiteSpace(absl::string_view text);

// The pieces of a pattern, all of them.
std::vector<TextSpan> SplitByPieces(FirstPiece first_piece, absl::string_view text);

struct MetaspaceOptions {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement = "\xE2\x96\x81";  // "▁", or another character
  Prepend prepend = Prepend::kAlways;        // kFirst: only where a text begins
  bool split = true;                         // before each replacement
};

// Spaces become `replacement`, and words begin with it.
WordStep MetaspaceStep(MetaspaceOptions options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_SPLITTER_H_
