#include "megatron/train/costs/layer_shape.h"

namespace megatron {

int64_t ValueHeadDim(const config::ModelConfig& model) {
  constexpr int64_t kOfLatentAttention = 128;  // Megatron's default
  if (model.has_v_head_dim()) return model.v_head_dim();
  return model.multi_latent_attention() ? kOfLatentAttention : model.kv_channels();
}

LayerShape ToLayerShape(const config::ModelConfig& model) {
  LayerShape layer;
  layer.hidden = model.hidden_size();
  layer.query_width = model.num_attention_heads() * model.kv_channels();
  layer.key_value_width = model.num_query_groups() * model.kv_channels();
  layer.value_width = model.num_attention_heads() * ValueHeadDim(model);
  if (model.multi_latent_attention()) {
    layer.kv_latent = model.kv_lora_rank();
    layer.q_latent = model.q_lora_rank();
    layer.shared_key = model.qk_pos_emb_head_dim();
    layer.own_key_width = model.num_attention_heads() * model.qk_head_dim();
  }
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
  // Only the last projection of latent attention has a bias.
  const int64_t qkv =
      model.multi_latent_attention() ? 0 : layer.query_width + KeyAndValueWidth(layer);
  const int64_t parts = layer.is_gated ? 2 : 1;
  if (model.disable_bias_linear()) return model.add_qkv_bias() ? qkv : 0;
  if (!has_experts) return qkv + parts * layer.ffn + 2 * layer.hidden;
  const int64_t router = layer.num_experts;
  return qkv + layer.hidden + router +
         layer.num_experts * (parts * layer.expert_ffn + layer.hidden);
}

}  // namespace megatron
