// The steps around the model that a tokenizer.json describes: normalizers, pre-tokenizers,
// decoders.
//
// A step that isn't known is refused by its name: a tokenizer that left it out would give other
// tokens than the model was trained with. So are steps that together could make a text thousands of
// times as long.
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
  ByteLevelSplit split;         // if byte_level
  std::vector<WordStep> words;  // else
};

// Each takes the value of the member "normalizer", "pre_tokenizer" or "decoder", which may be null:
// no step, for which normalizers and decoders are null too.
absl::StatusOr<Normalizer> NormalizerFromJson(const nlohmann::json& description);
absl::StatusOr<PreTokenizer> PreTokenizerFromJson(const nlohmann::json& description);
absl::StatusOr<TokenDecoder> DecoderFromJson(const nlohmann::json& description);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_STEPS_JSON_H_
