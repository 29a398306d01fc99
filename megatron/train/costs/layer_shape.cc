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
  layer.experts_per_token = model.moe_router_topk();
  layer.expert_ffn = model.moe_ffn_hidden_size();
  layer.shared_expert_ffn = model.moe_shared_expert_intermediate_size();
  layer.has_shared_expert_gate = model.moe_shared_expert_gate();
  return layer;
}

int64_t NormWeights(const config::ModelConfig& model, int64_t channels) {
  return model.normalization() == config::Normalization::LayerNorm ? 2 * channels : channels;
}

int64_t LayerBiases(const config::ModelConfig& model, bool has_experts) {
  const LayerShape layer = ToLayerShape(model);
  const int64_t qkv = layer.query_width + 2 * layer.key_value_width;
  const int64_t parts = layer.is_gated ? 2 : 1;
  if (model.disable_bias_linear()) return model.add_qkv_bias() ? qkv : 0;
  if (!has_experts) return qkv + parts * layer.ffn + 2 * layer.hidden;
  const int64_t router = layer.num_experts;
  return qkv + layer.hidden + router +
         layer.num_experts * (parts * layer.expert_ffn + layer.hidden);
}

}  // namespace megatron
