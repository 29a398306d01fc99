#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/models/huggingface/hf_table.h"

namespace megatron {
namespace {

class T5Table : public HfTable {
 public:
  using HfTable::HfTable;

  std::vector<HfTensor> Build() {
    AddTable("shared.weight", "embedding.word_embeddings.weight", options_.vocab_size);
    for (int64_t i = 0; i < options_.num_encoder_layers; ++i) AddLayer("encoder", i);
    AddNormOf("encoder.final_layer_norm", "encoder.final_layernorm.");
    for (int64_t i = 0; i < layer_.num_layers; ++i) AddLayer("decoder", i);
    AddNormOf("decoder.final_layer_norm", "decoder.final_layernorm.");
    if (!options_.tied_embeddings)
      AddTable(kHfHeadName, "output_layer.weight", options_.vocab_size);
    return std::move(tensors_);
  }

 private:
  void AddLayer(const std::string& stack, int64_t i) {
    const std::string theirs = absl::StrCat(stack, ".block.", i, ".layer.");
    const std::string ours = absl::StrCat(stack, ".layers.", i);
    int sublayer = 0;
    AddSelfAttention(absl::StrCat(theirs, sublayer++), ours);
    if (i == 0) {
      AddMatrix(theirs + "0.SelfAttention.relative_attention_bias.weight",
                stack + "_relative_pos_emb.relative_attention_bias.weight",
                {layer_.relative_positions.buckets, layer_.num_attention_heads},
                layer_.relative_positions.buckets, SameRow);
    }
    if (stack == "decoder") AddCrossAttention(absl::StrCat(theirs, sublayer++), ours);
    AddMlp(absl::StrCat(theirs, sublayer), ours);
  }

  void AddSelfAttention(const std::string& theirs, const std::string& ours) {
    AddLayerNorm(theirs + ".layer_norm", Qkv(ours).name);
    const QkvRows qkv = qkv_;
    const std::string attention = theirs + ".SelfAttention.";
    AddLinear(attention + "q", Qkv(ours), /*bias=*/false, qkv.query_rows(),
              [qkv](int64_t r) { return qkv.Query(r); });
    AddLinear(attention + "k", Qkv(ours), /*bias=*/false, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Key(r); });
    AddLinear(attention + "v", Qkv(ours), /*bias=*/false, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Value(r); });
    AddWhole(attention + "o", Proj(ours));
  }

  // linear_kv is [heads, key then value, head size].
  void AddCrossAttention(const std::string& theirs, const std::string& layer) {
    AddNormOf(theirs + ".layer_norm", layer + ".pre_cross_attn_layernorm.");
    const int64_t heads = layer_.num_attention_heads, size = layer_.kv_channels;
    const std::string ours = layer + ".cross_attention", attention = theirs + ".EncDecAttention.";
    AddWhole(attention + "q", {ours + ".linear_q", {heads, 1, size}, layer_.hidden_size});
    const Source kv = {ours + ".linear_kv", {heads, 2, size}, layer_.hidden_size};
    AddLinear(attention + "k", kv, /*bias=*/false, heads * size,
              [size](int64_t r) { return 2 * (r / size) * size + r % size; });
    AddLinear(attention + "v", kv, /*bias=*/false, heads * size,
              [size](int64_t r) { return (2 * (r / size) + 1) * size + r % size; });
    AddWhole(attention + "o", {ours + ".linear_proj", {layer_.hidden_size}, heads * size});
  }

  void AddMlp(const std::string& theirs, const std::string& ours) {
    AddLayerNorm(theirs + ".layer_norm", Fc1(ours).name);
    const std::string mlp = theirs + ".DenseReluDense.";
    const int64_t ffn = layer_.ffn_hidden_size;
    if (layer_.gated) {
      AddLinear(mlp + "wi_0", Fc1(ours), /*bias=*/false, ffn, SameRow);
      AddLinear(mlp + "wi_1", Fc1(ours), /*bias=*/false, ffn, [ffn](int64_t r) { return ffn + r; });
    } else {
      AddWhole(mlp + "wi", Fc1(ours));
    }
    AddWhole(mlp + "wo", Fc2(ours));
  }

  void AddNormOf(const std::string& theirs, const std::string& ours) {
    AddNorm(theirs, ours + "weight", ours + "bias");
  }
  void AddWhole(const std::string& theirs, const Source& ours) {
    AddLinear(theirs, ours, /*bias=*/false, ours.outputs.numel(), SameRow);
  }
};

}  // namespace

std::vector<HfTensor> HfT5Tensors(const ModelOptions& options) { return T5Table(options).Build(); }

}  // namespace megatron
