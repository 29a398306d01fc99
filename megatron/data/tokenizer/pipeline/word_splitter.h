// Steps that split text into words as Hugging Face's pre-tokenizers do for models that are not
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

// A word in its spelling for the model.
struct Word {
  std::string text;
  size_t begin = 0;  // position in the section at which it begins
  // The position in the section from which each byte of the text comes, and the position of its
  // end; filled on request.
  std::vector<size_t> origins;
};

// A step that replaces each word by one or more words. The first step gets the whole section as one
// word.
using WordStep = std::function<void(std::vector<Word>* words)>;

// Makes a step of `split`, which returns the spans of the words.
WordStep SplitStep(std::function<std::vector<TextSpan>(absl::string_view)> split);

// Returns the runs of characters that are not white space.
std::vector<TextSpan> SplitWhiteSpace(absl::string_view text);

// Returns all pieces into which a pattern splits the text.
std::vector<TextSpan> SplitByPieces(FirstPiece first_piece, absl::string_view text);

// What becomes of the occurrences of a string at which a text is split.
enum class SplitBehavior {
  kRemoved,
  kIsolated,      // each is a word
  kWithPrevious,  // each ends the word in front of it, unless that is one itself
  kWithNext,      // each begins the word behind it, unless that is one itself
  kContiguous,    // those that follow each other are a word
};

// Makes a step that splits at each occurrence of `mark`, which is not empty.
WordStep SplitAtStringStep(std::string mark, SplitBehavior behavior);

struct MetaspaceOptions {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement = "\xE2\x96\x81";  // "▁", or another character
  Prepend prepend = Prepend::kAlways;        // kFirst: only at the beginning of a text
  bool split = true;                         // split before each replacement
};

// Makes a step that replaces spaces by `replacement` and puts it before words.
WordStep MetaspaceStep(MetaspaceOptions options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_SPLITTER_H_
