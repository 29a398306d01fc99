// What a tokenizer.json's post-processor puts around a text.
//
// Known are TemplateProcessing (of which the template for one text counts), BertProcessing,
// RobertaProcessing and ByteLevel, which adds nothing, and Sequences of them. Others are refused by
// name.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace megatron {

struct TokensAround {
  std::vector<int32_t> before, behind;
};

// Of the member "post_processor", which may be null: nothing is added. kInvalidArgument also for
// ids that are not below `vocab_size`, and for more of them than any model has.
absl::StatusOr<TokensAround> PostProcessorFromJson(const nlohmann::json& description,
                                                   int64_t vocab_size);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_POST_PROCESSOR_JSON_H_
