// Reads the steps around the model that a tokenizer.json describes: normalizers, pre-tokenizers and
// decoders.
//
// An unknown step is refused by its name: a tokenizer without it would give other tokens than those
// the model was trained with. Steps that together could make a text thousands of times as long are
// refused too.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_STEPS_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_STEPS_JSON_H_

#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/bpe/byte_level_model.h"
#include "megatron/data/tokenizer/pipeline/normalizer.h"
#include "megatron/data/tokenizer/pipeline/token_decoder.h"
#include "megatron/data/tokenizer/pipeline/word_splitter.h"
#include "nlohmann/json.hpp"

namespace megatron {

struct PreTokenizer {
  bool byte_level = false;
  ByteLevelSplit split;         // used if byte_level
  std::vector<WordStep> words;  // used otherwise
};

// Each function takes the value of the member "normalizer", "pre_tokenizer" or "decoder". The value
// may be null, which means no step; normalizers and decoders are then null too.
absl::StatusOr<Normalizer> NormalizerFromJson(const nlohmann::json& description);
absl::StatusOr<PreTokenizer> PreTokenizerFromJson(const nlohmann::json& description);
absl::StatusOr<TokenDecoder> DecoderFromJson(const nlohmann::json& description);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_STEPS_JSON_H_
