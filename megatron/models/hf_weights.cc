#include "megatron/models/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"

namespace megatron {
namespace {

constexpr char kGpt2Prefix[] = "transformer.";

int64_t SameRow(int64_t r) { return r; }

// Where rows of q, k and v are in linear_qkv: [groups, heads of the group then key then value,
// head_size].
class QkvRows {
 public:
  explicit QkvRows(const TransformerOptions& options)
      : heads_(options.num_attention_heads),
        groups_(options.num_query_groups),
        heads_per_group_(heads_ / groups_),
        head_size_(options.kv_channels),
        interleaved_(options.rotary && options.rotary_options.interleaved) {}

  int64_t query_rows() const { return heads_ * head_size_; }
  int64_t key_rows() const { return groups_ * head_size_; }

  int64_t Query(int64_t r) const {
    const int64_t head = r / head_size_;
    return Row(head / heads_per_group_, head % heads_per_group_, Rotated(r % head_size_));
  }
  int64_t Key(int64_t r) const {
    return Row(r / head_size_, heads_per_group_, Rotated(r % head_size_));
  }
  int64_t Value(int64_t r) const {
    return Row(r / head_size_, heads_per_group_ + 1, r % head_size_);
  }
  // q, k and v one after the other.
  int64_t Concatenated(int64_t r) const {
    if (r < query_rows()) return Query(r);
    r -= query_rows();
    return r < key_rows() ? Key(r) : Value(r - key_rows());
  }

 private:
  int64_t Row(int64_t group, int64_t slot, int64_t channel) const {
    return (group * (heads_per_group_ + 2) + slot) * head_size_ + channel;
  }
  // Our channel that is theirs: their first half of a head are the first members of all pairs.
  int64_t Rotated(int64_t channel) const {
    if (!interleaved_) return channel;
    const int64_t half = head_size_ / 2;
    return channel < half ? 2 * channel : 2 * (channel - half) + 1;
  }

  int64_t heads_, groups_, heads_per_group_, head_size_;
  bool interleaved_;
};

// A linear layer, a norm or a table of ours: the first dims of its weight, and the last.
struct Source {
  std::string name;  // without ".weight" and ".bias"
  Shape outputs;
  int64_t inputs = 0;
};

class TableBuilder {
 public:
  explicit TableBuilder(const GptOptions& options)
      : options_(options), layer_(options.transformer), qkv_(options.transformer) {}

  std::vector<HfTensor> BuildGpt2() {
    AddTable("transformer.wte.weight", "embedding.word_embeddings.weight", options_.vocab_size);
    AddMatrix("transformer.wpe.weight", "embedding.position_embeddings.weight",
              {options_.max_positions, layer_.hidden_size}, options_.max_positions, SameRow);
    for (int64_t i = 0; i < layer_.num_layers; ++i) AddGpt2Layer(i);
    AddNorm("transformer.ln_f", "decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    if (!options_.tied_embeddings)
      AddTable(kHfHeadName, "output_layer.weight", options_.vocab_size);
    return std::move(tensors_);
  }

  std::vector<HfTensor> BuildLlama() {
    AddTable("model.embed_tokens.weight", "embedding.word_embeddings.weight", options_.vocab_size);
    for (int64_t i = 0; i < layer_.num_layers; ++i) AddLlamaLayer(i);
    AddNorm("model.norm", "decoder.final_layernorm.weight", "");
    if (!options_.tied_embeddings)
      AddTable(kHfHeadName, "output_layer.weight", options_.vocab_size);
    return std::move(tensors_);
  }

 private:
  using Row = std::function<int64_t(int64_t)>;

  Source Qkv(const std::string& ours) const {
    const int64_t per_group = layer_.num_attention_heads / layer_.num_query_groups + 2;
    return {ours + ".self_attention.linear_qkv",
            {layer_.num_query_groups, per_group, layer_.kv_channels},
            layer_.hidden_size};
  }
  Source Proj(const std::string& ours) const {
    return {ours + ".self_attention.linear_proj",
            {layer_.hidden_size},
            layer_.num_attention_heads * layer_.kv_channels};
  }
  Source Fc1(const std::string& ours) const {
    const int64_t ffn = layer_.ffn_hidden_size;
    return {ours + ".mlp.linear_fc1", layer_.gated ? Shape{2, ffn} : Shape{ffn},
            layer_.hidden_size};
  }
  Source Fc2(const std::string& ours) const {
    return {ours + ".mlp.linear_fc2", {layer_.hidden_size}, layer_.ffn_hidden_size};
  }

  void AddGpt2Layer(int64_t i) {
    const std::string theirs = absl::StrCat("transformer.h.", i);
    const std::string ours = absl::StrCat("decoder.layers.", i);
    AddLayerNorm(theirs + ".ln_1", ours + ".self_attention.linear_qkv");
    const QkvRows qkv = qkv_;
    AddConv1d(theirs + ".attn.c_attn", Qkv(ours), [qkv](int64_t r) { return qkv.Concatenated(r); });
    AddConv1d(theirs + ".attn.c_proj", Proj(ours), SameRow);
    AddLayerNorm(theirs + ".ln_2", ours + ".mlp.linear_fc1");
    AddConv1d(theirs + ".mlp.c_fc", Fc1(ours), SameRow);
    AddConv1d(theirs + ".mlp.c_proj", Fc2(ours), SameRow);
  }

  void AddLlamaLayer(int64_t i) {
    const std::string theirs = absl::StrCat("model.layers.", i);
    const std::string ours = absl::StrCat("decoder.layers.", i);
    const QkvRows qkv = qkv_;
    const int64_t ffn = layer_.ffn_hidden_size;
    const bool bias = layer_.linear_bias, qkv_bias = layer_.qkv_bias;
    AddLayerNorm(theirs + ".input_layernorm", ours + ".self_attention.linear_qkv");
    const std::string attention = theirs + ".self_attn";
    AddLinear(attention + ".q_proj", Qkv(ours), qkv_bias, qkv.query_rows(),
              [qkv](int64_t r) { return qkv.Query(r); });
    AddLinear(attention + ".k_proj", Qkv(ours), qkv_bias, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Key(r); });
    AddLinear(attention + ".v_proj", Qkv(ours), qkv_bias, qkv.key_rows(),
              [qkv](int64_t r) { return qkv.Value(r); });
    AddLinear(attention + ".o_proj", Proj(ours), bias, layer_.hidden_size, SameRow);
    AddLayerNorm(theirs + ".post_attention_layernorm", ours + ".mlp.linear_fc1");
    AddLinear(theirs + ".mlp.gate_proj", Fc1(ours), bias, ffn, SameRow);
    AddLinear(theirs + ".mlp.up_proj", Fc1(ours), bias, ffn, [ffn](int64_t r) { return ffn + r; });
    AddLinear(theirs + ".mlp.down_proj", Fc2(ours), bias, layer_.hidden_size, SameRow);
  }

  HfTensor* Add(const std::string& theirs, const std::string& ours, const Shape& ours_shape) {
    tensors_.emplace_back();
    HfTensor* const tensor = &tensors_.back();
    tensor->name = theirs;
    tensor->parameter = ours;
    tensor->parameter_shape = ours_shape;
    return tensor;
  }

  void AddVector(const std::string& theirs, const std::string& ours, const Shape& ours_shape,
                 int64_t rows, Row row) {
    HfTensor* const tensor = Add(theirs, ours, ours_shape);
    tensor->shape = {rows};
    tensor->rows = rows;
    tensor->row = std::move(row);
  }

  HfTensor* AddMatrix(const std::string& theirs, const std::string& ours, const Shape& ours_shape,
                      int64_t rows, Row row) {
    HfTensor* const tensor = Add(theirs, ours, ours_shape);
    tensor->rows = rows;
    tensor->columns = ours_shape[-1];
    tensor->shape = {rows, tensor->columns};
    tensor->row = std::move(row);
    return tensor;
  }

  void AddTable(const std::string& theirs, const std::string& ours, int64_t rows) {
    AddMatrix(theirs, ours, {options_.padded_vocab_size, layer_.hidden_size}, rows, SameRow);
  }

  // A norm in front of the linear layer that it is named after.
  void AddLayerNorm(const std::string& theirs, const std::string& linear) {
    AddNorm(theirs, linear + ".layer_norm_weight", linear + ".layer_norm_bias");
  }
  void AddNorm(const std::string& theirs, const std::string& weight, const std::string& bias) {
    const int64_t width = layer_.hidden_size;
    AddVector(theirs + ".weight", weight, {width}, width, SameRow);
    if (layer_.norm.kind != ops::Norm::kLayerNorm) return;
    AddVector(theirs + ".bias", bias, {width}, width, SameRow);
  }

  void AddLinear(const std::string& theirs, const Source& ours, bool bias, int64_t rows, Row row) {
    std::vector<int64_t> dims = ours.outputs.dims();
    dims.push_back(ours.inputs);
    AddMatrix(theirs + ".weight", ours.name + ".weight", Shape(dims), rows, row);
    if (bias) AddVector(theirs + ".bias", ours.name + ".bias", ours.outputs, rows, row);
  }

  // All rows of ours, with a bias, transposed.
  void AddConv1d(const std::string& theirs, const Source& ours, Row row) {
    const size_t first = tensors_.size();
    AddLinear(theirs, ours, /*bias=*/true, ours.outputs.numel(), std::move(row));
    tensors_[first].transposed = true;
    std::swap(tensors_[first].shape[0], tensors_[first].shape[1]);
  }

  const GptOptions& options_;
  const TransformerOptions& layer_;
  const QkvRows qkv_;
  std::vector<HfTensor> tensors_;
};

// Calls copy(row here, column, row there) in blocks that stay in the cache when one side is walked
// across.
template <typename Copy>
void ForEachElement(const HfTensor& tensor, const Copy& copy) {
  constexpr int64_t kBlock = 64;
  for (int64_t r0 = 0; r0 < tensor.rows; r0 += kBlock) {
    const int64_t r1 = std::min(r0 + kBlock, tensor.rows);
    for (int64_t c0 = 0; c0 < tensor.columns; c0 += kBlock) {
      const int64_t c1 = std::min(c0 + kBlock, tensor.columns);
      for (int64_t r = r0; r < r1; ++r) {
        const int64_t ours = tensor.row(r);
        for (int64_t c = c0; c < c1; ++c) copy(ours * tensor.columns + c, c * tensor.rows + r);
      }
    }
  }
}

template <typename Element>
void CopyTransposed(const HfTensor& tensor, bool to_theirs, char* ours, char* theirs) {
  ForEachElement(tensor, [&](int64_t our_index, int64_t their_index) {
    char* const a = ours + our_index * static_cast<int64_t>(sizeof(Element));
    char* const b = theirs + their_index * static_cast<int64_t>(sizeof(Element));
    if (to_theirs) {
      std::memcpy(b, a, sizeof(Element));
    } else {
      std::memcpy(a, b, sizeof(Element));
    }
  });
}

void Copy(const HfTensor& tensor, int64_t element_size, bool to_theirs, char* ours, char* theirs) {
  if (tensor.transposed) {
    switch (element_size) {
      case 1:
        return CopyTransposed<uint8_t>(tensor, to_theirs, ours, theirs);
      case 2:
        return CopyTransposed<uint16_t>(tensor, to_theirs, ours, theirs);
      case 4:
        return CopyTransposed<uint32_t>(tensor, to_theirs, ours, theirs);
      case 8:
        return CopyTransposed<uint64_t>(tensor, to_theirs, ours, theirs);
      default:
        LOG(FATAL) << "elements of " << element_size << " bytes";
    }
  }
  const int64_t row_bytes = tensor.columns * element_size;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    char* const a = ours + tensor.row(r) * row_bytes;
    char* const b = theirs + r * row_bytes;
    std::memcpy(to_theirs ? b : a, to_theirs ? a : b, static_cast<size_t>(row_bytes));
  }
}

}  // namespace

std::vector<HfTensor> HfTensors(const GptOptions& options) {
  TableBuilder builder(options);
  return options.learned_positions ? builder.BuildGpt2() : builder.BuildLlama();
}

void CopyToHf(const HfTensor& tensor, int64_t element_size, const char* ours, char* theirs) {
  Copy(tensor, element_size, /*to_theirs=*/true, const_cast<char*>(ours), theirs);
}

void CopyFromHf(const HfTensor& tensor, int64_t element_size, const char* theirs, char* ours) {
  Copy(tensor, element_size, /*to_theirs=*/false, ours, const_cast<char*>(theirs));
}

std::string HfNameWithoutHead(const HfTensor& tensor) {
  absl::string_view name = tensor.name;
  return absl::ConsumePrefix(&name, kGpt2Prefix) ? std::string(name) : std::string();
}

bool IsHfBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace megatron
