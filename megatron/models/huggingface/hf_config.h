// A model of ours as a Hugging Face model: config.json and our options, each made of the other.
//
// Some of their architectures have shapes that ours have too:
//
//   gpt2                  learned positions, LayerNorm, GELU, biases
//   bert, megatron-bert   post-norm and pre-norm, with or without the sentence-order head
//   t5, mt5               relative positions, RMSNorm, no biases (1.0, 1.1 and what is like them)
//   llama and others      rotary positions or mixers: the table of hf_decoder.h
//
// Nothing is approximated: what the other side cannot express is refused, with all reasons at
// once. Dropout and initial deviations belong to a training and not to a model; they are handed on
// as far as there is a name for them. How the weights are laid out: hf_weights.h.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/models/model_options.h"

namespace megatron {

inline constexpr char kHfConfigFileName[] = "config.json";
inline constexpr char kHfGenerationConfigFileName[] = "generation_config.json";
inline constexpr int64_t kMaxHfConfigBytes = int64_t{1} << 20;

// The ids of the tokens that begin and end a text, and fill it up; -1: none.
struct HfTokens {
  int32_t bos = -1, eos = -1, pad = -1;
};

// Returns a model's config.json. Several families of theirs may have the model; `model_type`
// chooses one, and otherwise it is the first in the order of hf_decoder.h. kInvalidArgument lists
// every option that has no counterpart there.
absl::StatusOr<std::string> HfConfigJson(const ModelOptions& options, const HfTokens& tokens,
                                         absl::string_view model_type = "");
// Returns the generation_config.json of the same model.
std::string HfGenerationConfigJson(const ModelOptions& options, const HfTokens& tokens);

// The model that a config.json describes; vocabulary not padded, dtype fp32 whatever it says (the
// tensors tell theirs). Made for hostile text: sizes that come out are small enough to be
// multiplied. kDataLoss where the text is no JSON object, duplicate keys included;
// kInvalidArgument lists every value that is missing, out of range or has no counterpart here.
absl::StatusOr<ModelOptions> ParseHfConfig(absl::string_view text);
// The model type of such a text.
absl::StatusOr<std::string> ParseHfModelType(absl::string_view text);
// The ids that it names; of several that end a text the first. Those that are missing, or are no
// ids of the model, are -1.
absl::StatusOr<HfTokens> ParseHfTokens(absl::string_view text, int64_t vocab_size);

// Returns the number of rows of BERT's table of token types there. A model without token types has
// a table of zeros, of the two rows that tokenizers use.
int64_t HfTokenTypes(const ModelOptions& options);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_H_
