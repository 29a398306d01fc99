// The layers of hybrid families of decoders (HfMixers): Mamba-2 mixers, gated delta nets and
// attention. A layer there, a mixer with an MLP or experts behind it, is two of ours. A layer of
// mamba2, which has a mixer alone, is one.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_MIXERS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_MIXERS_H_

#include <cstdint>

#include "megatron/layers/transformer_options.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/huggingface/hf_decoder.h"

namespace megatron {

// Returns the number of layers there.
int64_t HfLayers(const HfDecoder& family, const TransformerOptions& layer);

// Returns whether a hybrid model has a layer of the kind.
bool HasHybridLayer(const TransformerOptions& layer, HybridLayer kind);

// Reads which layers are of which kind, and the sizes of mixers. num_layers and MoeOptions::layers
// are those of the layers there, and become those of ours.
void ReadHfMixers(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer);
void CheckHfMixers(const HfDecoder& family, const TransformerOptions& layer,
                   const HfRequirements& require);
void WriteHfMixers(const HfDecoder& family, const TransformerOptions& layer, HfJson* config);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_MIXERS_H_
