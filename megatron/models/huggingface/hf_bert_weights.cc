#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_table.h"

namespace megatron {
namespace {

class BertTable : public HfTable {
 public:
  using HfTable::HfTable;

  std::vector<HfTensor> Build() {
    const std::string embeddings = "bert.embeddings.";
    AddTable(embeddings + "word_embeddings.weight", "embedding.word_embeddings.weight",
             options_.vocab_size);
    AddWholeTable(embeddings + "position_embeddings.weight", "embedding.position_embeddings.weight",
                  options_.max_positions);
    AddWholeTable(embeddings + "token_type_embeddings.weight",
                  options_.num_token_types > 0 ? "embedding.tokentype_embeddings.weight" : "",
                  HfTokenTypes(options_));
    if (layer_.post_norm) AddNormOf(embeddings + "LayerNorm", "embedding.layernorm.");
    for (int64_t i = 0; i < layer_.num_layers; ++i) AddLayer(i);
    if (!layer_.post_norm) AddNormOf("bert.encoder.ln", "encoder.final_layernorm.");
    if (options_.sentence_order_head || options_.num_classes > 0)
      AddDense("bert.pooler.dense", "pooler.dense");
    if (options_.num_classes > 0) {
      const char* const ours =
          options_.num_choices > 1 ? "multichoice_head" : "classification_head";
      AddLinear("classifier", {ours, {options_.num_classes}, layer_.hidden_size}, /*bias=*/true,
                options_.num_classes, SameRow);
      return std::move(tensors_);
    }
    const std::string head = "cls.predictions.";
    AddVector(head + "bias", "output_layer.bias", {options_.padded_vocab_size}, options_.vocab_size,
              SameRow);
    AddDense(head + "transform.dense", "lm_head.dense");
    AddNormOf(head + "transform.LayerNorm", "lm_head.layer_norm.");
    if (options_.sentence_order_head) {
      AddLinear("cls.seq_relationship", {"binary_head", {2}, layer_.hidden_size}, /*bias=*/true, 2,
                SameRow);
    }
    return std::move(tensors_);
  }

 private:
  void AddLayer(int64_t i) {
    const std::string theirs = absl::StrCat("bert.encoder.layer.", i);
    const std::string ours = absl::StrCat("encoder.layers.", i);
    if (!layer_.post_norm) AddLayerNorm(theirs + ".attention.ln", Qkv(ours).name);
    const QkvRows qkv = qkv_;
    const std::string attention = theirs + ".attention.self.";
    AddLinear(attention + "query", Qkv(ours), /*bias=*/true, qkv.query_rows(),
              [qkv](int64_t r) { return qkv.Query(r); });
    AddLinear(attention + "key", Qkv(ours), /*bias=*/true, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Key(r); });
    AddLinear(attention + "value", Qkv(ours), /*bias=*/true, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Value(r); });
    AddWhole(theirs + ".attention.output.dense", Proj(ours));
    if (layer_.post_norm)
      AddNormOf(theirs + ".attention.output.LayerNorm", ours + ".post_self_attn_layernorm.");
    if (!layer_.post_norm) AddLayerNorm(theirs + ".ln", Fc1(ours).name);
    AddWhole(theirs + ".intermediate.dense", Fc1(ours));
    AddWhole(theirs + ".output.dense", Fc2(ours));
    if (layer_.post_norm) AddNormOf(theirs + ".output.LayerNorm", ours + ".post_mlp_layernorm.");
  }

  void AddWholeTable(const std::string& theirs, const std::string& ours, int64_t rows) {
    AddMatrix(theirs, ours, {rows, layer_.hidden_size}, rows, SameRow);
  }
  void AddNormOf(const std::string& theirs, const std::string& ours) {
    AddNorm(theirs, ours + "weight", ours + "bias");
  }
  void AddWhole(const std::string& theirs, const Source& ours) {
    AddLinear(theirs, ours, /*bias=*/true, ours.outputs.numel(), SameRow);
  }
  void AddDense(const std::string& theirs, const std::string& ours) {
    AddWhole(theirs, {ours, {layer_.hidden_size}, layer_.hidden_size});
  }
};

}  // namespace

std::vector<HfTensor> HfBertTensors(const ModelOptions& options) {
  return BertTable(options).Build();
}

}  // namespace megatron
