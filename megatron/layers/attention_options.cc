#include "megatron/layers/attention_options.h"

namespace megatron {

bool HidesMessages(const TransformerOptions& options) {
  const bool gathers_before =
      options.sequence_parallel && options.recompute.attention_chunk_tokens > 0;
  return options.tp_comm_overlap && !gathers_before;
}

LinearOptions AttentionOutputLinear(const TransformerOptions& options, const std::string& name) {
  LinearOptions linear;
  linear.name = name + ".linear_proj";
  linear.input_size = options.num_attention_heads * options.value_size();
  linear.output_shape = {options.hidden_size};
  linear.bias = options.linear_bias;
  linear.sequence_parallel = options.sequence_parallel;
  linear.init_std = options.output_init_std;
  linear.float8 = options.float8;
  linear.grid = options.grid;
  linear.overlap = HidesMessages(options);
  linear.adapter = options.lora.Of("linear_proj");
  return linear;
}

AttentionCoreOptions SelfAttentionCore(const TransformerOptions& options, int64_t layer,
                                       const ProcessGroup& tensor_group) {
  AttentionCoreOptions core;
  core.layer = options.first_dropout_layer + layer;
  core.first_head = options.num_attention_heads / tensor_group.size() * tensor_group.rank();
  core.head_size = options.kv_channels;
  core.dropout = options.attention_dropout;
  core.causal = options.causal;
  core.scale = options.softmax_scale;
  core.softcap = options.score_softcap;
  if (options.HasWindow(layer)) core.window_size = options.window_size;
  core.gathers_keys = options.context_parallel == ContextParallel::kGather;
  core.kernels = options.attention_kernels;
  return core;
}

AttentionCoreOptions CrossAttentionCore(const TransformerOptions& options, int64_t layer,
                                        const ProcessGroup& tensor_group) {
  AttentionCoreOptions core = SelfAttentionCore(options, layer, tensor_group);
  core.softcap = 0;
  core.causal = false;
  core.window_size = 0;
  core.cross = true;
  return core;
}

}  // namespace megatron
