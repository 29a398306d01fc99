// The experts of families of decoders (HfExperts): config.json and our options, each made of the
// other.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_EXPERTS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_EXPERTS_H_

#include "megatron/layers/transformer_options.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/huggingface/hf_decoder.h"

namespace megatron {

// Reads which layers there have experts, and what they are. num_layers is the number there.
void ReadHfExperts(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer);
void CheckHfExperts(const HfDecoder& family, const TransformerOptions& layer,
                    const HfRequirements& require);
void WriteHfExperts(const HfDecoder& family, const TransformerOptions& layer, HfJson* config);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_EXPERTS_H_
