// Reads the tokens that a tokenizer.json's post-processor adds around a text.
//
// TemplateProcessing (only the template for one text), BertProcessing, RobertaProcessing, ByteLevel
// (which adds nothing) and Sequences of these are supported. Others are refused by name.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace megatron {

struct TokensAround {
  std::vector<int32_t> before, after;
};

// Reads the member "post_processor"; if it is null, nothing is added. kInvalidArgument also for ids
// of `vocab_size` and more, and for more tokens than any model has.
absl::StatusOr<TokensAround> PostProcessorFromJson(const nlohmann::json& description,
                                                   int64_t vocab_size);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_
