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

struct ParsedModel {
  std::vector<std::string> pieces;  // the vocabulary, by id
  std::unique_ptr<TextModel> model;
};

// Reads the member "model". The result also does the work of the pre-tokenizer. The model never
// makes one of the special tokens among `added` of plain text.
absl::StatusOr<ParsedModel> ModelFromJson(const nlohmann::json& description,
                                          PreTokenizer pre_tokenizer,
                                          const std::vector<AddedToken>& added);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_MODEL_JSON_H_
