// The functions that read and write config.json, family by family; those of the decoders with
// rotary positions are in hf_decoder.h.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_FAMILIES_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/model_options.h"

namespace megatron {

// Reading and writing for BERT; `type` is "bert" or "megatron-bert".
void ReadHfBert(const HfFields& fields, const std::string& type, ModelOptions* options);
void CheckHfBert(const ModelOptions& options, HfReasons* reasons);
HfJson HfBertConfig(const ModelOptions& options, const HfTokens& tokens);

// Reading and writing for T5; `type` is "t5" or "mt5".
void ReadHfT5(const HfFields& fields, const std::string& type, ModelOptions* options);
void CheckHfT5(const ModelOptions& options, HfReasons* reasons);
HfJson HfT5Config(const ModelOptions& options, absl::string_view type);
// The first token of the decoder, in both files. A text that is written begins with BOS, else with
// padding (restored_text.h). Where the tokenizer has neither it is 0, the padding of T5 as
// published: generate() needs one.
HfJson HfT5Tokens(const HfTokens& tokens);

// Reading and writing for GPT-2.
void ReadHfGpt2(const HfFields& fields, ModelOptions* options);
void CheckHfGpt2(const ModelOptions& options, HfReasons* reasons);
HfJson HfGpt2Config(const ModelOptions& options);

// Returns the names of all model types.
std::vector<std::string> HfModelTypes();

// Returns why no model of Hugging Face's, or of that `model_type` if it is not empty, is the same;
// nothing if there is one.
HfReasons HfReasonsAgainst(const ModelOptions& options, absl::string_view model_type);

// Returns null for a token that there is not.
HfJson TokenOrNull(int32_t token);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_FAMILIES_H_
