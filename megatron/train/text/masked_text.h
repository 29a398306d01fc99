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

// Returns the tokens that the model reads: those of `text` between [CLS] and [SEP].
// kInvalidArgument where the text has no [MASK], the vocabulary has none of the three, or
// `max_tokens` are not enough.
absl::StatusOr<std::vector<int32_t>> EncodeMasks(const std::string& text,
                                                 const Tokenizer& tokenizer, int64_t max_tokens);

// Each gap is filled from the text as it was given: the model does not see what it put in others.
// Where several ranks hold the model, all call it with the same text. kInvalidArgument where
// EncodeMasks refuses it; kUnavailable where a peer was lost.
absl::StatusOr<FilledText> FillMasks(const std::string& text, int num_guesses,
                                     const Tokenizer& tokenizer, int64_t max_tokens,
                                     TextGenerator* model);

// "1. cat 0.62, dog 0.11\n" for each gap.
std::string FormatGuesses(const FilledText& filled);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_MASKED_TEXT_H_
