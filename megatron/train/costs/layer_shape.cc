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
  if (model.attention_output_gate()) layer.gate_width = layer.query_width;
  if (model.multi_latent_attention()) {
    layer.kv_latent = model.kv_lora_rank();
    layer.q_latent = model.q_lora_rank();
    layer.shared_key = model.qk_pos_emb_head_dim();
    layer.own_key_width = model.num_attention_heads() * model.qk_head_dim();
  }
  if (model.has_hybrid_layer_pattern()) {
    layer.mamba_heads = model.mamba_num_heads();
    layer.mamba_inner = model.mamba_num_heads() * model.mamba_head_dim();
    layer.mamba_groups = model.mamba_num_groups();
    layer.mamba_state = model.mamba_state_dim();
    layer.delta_keys = model.linear_num_key_heads() * model.linear_key_head_dim();
    layer.delta_values = model.linear_num_value_heads() * model.linear_value_head_dim();
    layer.delta_heads = model.linear_num_value_heads();
    layer.delta_key_heads = model.linear_num_key_heads();
    layer.delta_taps = model.linear_conv_kernel_dim();
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

double MupWidthMult(const config::ModelConfig& model) {
  if (!model.use_mup()) return 1;
  return static_cast<double>(model.hidden_size()) /
         static_cast<double>(model.mup_base_hidden_size());
}

int64_t NormWeights(const config::ModelConfig& model, int64_t channels) {
  const bool has_bias =
      model.normalization() == config::Normalization::LayerNorm && !model.disable_bias_norm();
  return has_bias ? 2 * channels : channels;
}

int64_t AttentionBiases(const config::ModelConfig& model) {
  const LayerShape layer = ToLayerShape(model);
  // Only the last projection of latent attention has a bias.
  const int64_t qkv = model.multi_latent_attention()
                          ? 0
                          : layer.query_width + layer.gate_width + KeyAndValueWidth(layer);
  if (model.disable_bias_linear()) return model.add_qkv_bias() ? qkv : 0;
  return qkv + layer.hidden;
}

int64_t MlpBiases(const config::ModelConfig& model, bool has_experts) {
  if (model.disable_bias_linear() && !model.add_mlp_bias()) return 0;
  const LayerShape layer = ToLayerShape(model);
  const int64_t parts = layer.is_gated ? 2 : 1;
  if (!has_experts) return parts * layer.ffn + layer.hidden;
  const int64_t router = layer.num_experts;
  return router + layer.num_experts * (parts * layer.expert_ffn + layer.hidden);
}

int64_t LayerBiases(const config::ModelConfig& model, bool has_experts) {
  return AttentionBiases(model) + MlpBiases(model, has_experts);
}

}  // namespace megatron
