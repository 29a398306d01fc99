// Texts with gaps, which a trained BERT fills in.
//
//   the [MASK] sat on the mat   ->   the cat sat on the mat
#ifndef MEGATRON_TRAIN_TEXT_MASKED_TEXT_H_
#define MEGATRON_TRAIN_TEXT_MASKED_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/text_generator.h"

namespace megatron {

struct FilledText {
  std::string text;  // the text with the likeliest token in each gap
  // The likeliest tokens of each gap as they are spelled, and their probabilities.
  std::vector<std::vector<std::pair<std::string, double>>> guesses;
};

// Returns the tokens that the model reads: those of `text` between [CLS] and [SEP]. Returns
// kInvalidArgument if the text has no [MASK], if the vocabulary lacks one of the three tokens, or
// if the text has more than `max_tokens`.
absl::StatusOr<std::vector<int32_t>> EncodeMasks(const std::string& text,
                                                 const Tokenizer& tokenizer, int64_t max_tokens);

// Fills each gap from the text as it was given: the model does not see what it put in others. If
// several ranks hold the model, all call this with the same text. Returns kInvalidArgument if
// EncodeMasks refuses the text; kUnavailable if a peer was lost; kInternal, on all ranks alike, if
// the model gives no numbers.
absl::StatusOr<FilledText> FillMasks(const std::string& text, int num_guesses,
                                     const Tokenizer& tokenizer, int64_t max_tokens,
                                     TextGenerator* model);

// Returns "1. cat 0.62, dog 0.11\n" for each gap.
std::string FormatGuesses(const FilledText& filled);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_MASKED_TEXT_H_
