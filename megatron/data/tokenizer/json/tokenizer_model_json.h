// Reads the model of a tokenizer.json: BPE, WordPiece or Unigram.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_MODEL_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_MODEL_JSON_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/added_tokens.h"
#include "megatron/data/tokenizer/json/tokenizer_steps_json.h"
#include "megatron/data/tokenizer/pipeline/text_model.h"
#include "nlohmann/json.hpp"

namespace megatron {

// Reads the vocabulary of the member "model", by id.
absl::StatusOr<std::vector<std::string>> VocabularyFromJson(const nlohmann::json& description);

// Reads the member "model", whose vocabulary is `pieces`. The result also does the work of the
// pre-tokenizer. The model makes none of the special tokens among `added` of plain text, except the
// unknown token, and those of one character: that character may have no other token.
absl::StatusOr<std::unique_ptr<TextModel>> ModelFromJson(const nlohmann::json& description,
                                                         std::vector<std::string> pieces,
                                                         PreTokenizer pre_tokenizer,
                                                         const std::vector<AddedToken>& added);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_MODEL_JSON_H_
