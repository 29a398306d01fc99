// The options that self-attention and cross-attention have in common.
#ifndef MEGATRON_LAYERS_ATTENTION_OPTIONS_H_
#define MEGATRON_LAYERS_ATTENTION_OPTIONS_H_

#include <cstdint>
#include <string>

#include "megatron/comm/process_group.h"
#include "megatron/layers/attention_core.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

// Returns whether projections send beside their products. In chunks under sequence parallelism rows
// are sent before the first and behind the last chunk.
bool HidesMessages(const TransformerOptions& options);

// Returns the options of the projection from the heads' outputs back to the hidden size. `name` is
// the prefix of the attention's parameters.
LinearOptions AttentionOutputLinear(const TransformerOptions& options, const std::string& name);

// Returns the options of the core of self-attention in layer `layer`.
AttentionCoreOptions SelfAttentionCore(const TransformerOptions& options, int64_t layer,
                                       const ProcessGroup& tensor_group);

// Returns the options of the core of cross-attention in layer `layer`.
AttentionCoreOptions CrossAttentionCore(const TransformerOptions& options, int64_t layer,
                                        const ProcessGroup& tensor_group);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ATTENTION_OPTIONS_H_
