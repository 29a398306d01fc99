#include "megatron/train/costs/layer_shape.h"

namespace megatron {

LayerShape ToLayerShape(const config::ModelConfig& model) {
  LayerShape layer;
  layer.hidden = model.hidden_size();
  layer.query_width = model.num_attention_heads() * model.kv_channels();
  layer.key_value_width = model.num_query_groups() * model.kv_channels();
  layer.ffn = model.ffn_hidden_size();
  layer.is_gated = model.swiglu() || model.gated_linear_unit();
  layer.num_experts = model.num_experts();
  layer.expert_ffn = model.moe_ffn_hidden_size();
  layer.shared_expert_ffn = model.moe_shared_expert_intermediate_size();
  return layer;
}

}  // namespace megatron
