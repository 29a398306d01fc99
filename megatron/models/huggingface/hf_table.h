// The base class of the tables of Hugging Face's tensors (hf_weights.h), one for each model. It
// knows how our layers are laid out.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_TABLE_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The places of the rows of q, k and v in linear_qkv: [groups, heads of the group then key then
// value, head_size]. Where there are gates, those of the group stand behind its heads.
class QkvRows {
 public:
  // `pairs_there`: whether pairs of channels that rotate are neighbours there.
  explicit QkvRows(const TransformerOptions& options, bool pairs_there = false)
      : heads_(options.num_attention_heads),
        groups_(options.num_query_groups),
        heads_per_group_(heads_ / groups_),
        gates_per_group_(options.output_gate ? heads_per_group_ : 0),
        head_size_(options.kv_channels),
        rotated_(
            static_cast<int64_t>(static_cast<double>(head_size_) * options.rotary_options.percent) /
            2 * 2),
        interleaved_(options.rotary && options.rotary_options.interleaved),
        pairs_there_(options.rotary && pairs_there) {}

  int64_t query_rows() const { return heads_ * head_size_; }
  int64_t key_rows() const { return groups_ * head_size_; }

  int64_t Query(int64_t r) const {
    const int64_t head = r / head_size_;
    return Row(head / heads_per_group_, head % heads_per_group_, Rotated(r % head_size_));
  }
  int64_t Key(int64_t r) const {
    return Row(r / head_size_, heads_per_group_ + gates_per_group_, Rotated(r % head_size_));
  }
  int64_t Value(int64_t r) const {
    return Row(r / head_size_, heads_per_group_ + gates_per_group_ + 1, r % head_size_);
  }
  // The queries of all heads, each with its gate behind it.
  int64_t QueryOrGate(int64_t r) const {
    const int64_t head = r / (2 * head_size_), channel = r % (2 * head_size_);
    if (channel < head_size_) return Query(head * head_size_ + channel);
    return Row(head / heads_per_group_, heads_per_group_ + head % heads_per_group_,
               channel - head_size_);
  }
  // q, k and v one after the other.
  int64_t Concatenated(int64_t r) const {
    if (r < query_rows()) return Query(r);
    r -= query_rows();
    return r < key_rows() ? Key(r) : Value(r - key_rows());
  }
  // q, k and v of a group one after the other, as here.
  int64_t Grouped(int64_t r) const {
    const int64_t slots = heads_per_group_ + 2, head = r / head_size_, channel = r % head_size_;
    const bool is_value = head % slots == heads_per_group_ + 1;
    return Row(head / slots, head % slots, is_value ? channel : Rotated(channel));
  }
  // Returns our channel of a query or key head that is theirs. Where pairs are no neighbours, the
  // first half of what rotates are the first members of all pairs.
  int64_t Rotated(int64_t channel) const {
    if (interleaved_ == pairs_there_ || channel >= rotated_) return channel;
    const int64_t half = rotated_ / 2;
    if (pairs_there_) return channel / 2 + channel % 2 * half;
    return channel < half ? 2 * channel : 2 * (channel - half) + 1;
  }

 private:
  int64_t Row(int64_t group, int64_t slot, int64_t channel) const {
    return (group * (heads_per_group_ + gates_per_group_ + 2) + slot) * head_size_ + channel;
  }

  int64_t heads_, groups_, heads_per_group_, gates_per_group_, head_size_, rotated_;
  bool interleaved_, pairs_there_;
};

// A linear layer, a norm or a table of ours: the first dims of its weight, and the last.
struct Source {
  std::string name;  // name without ".weight" and ".bias"
  Shape outputs;
  int64_t inputs = 0;
};

class HfTable {
 public:
  explicit HfTable(const ModelOptions& options, bool pairs_there = false)
      : options_(options), layer_(options.transformer), qkv_(options.transformer, pairs_there) {}

 protected:
  using Row = std::function<int64_t(int64_t)>;
  static int64_t SameRow(int64_t r) { return r; }

  Source Qkv(const std::string& ours) const {
    const int64_t heads = layer_.num_attention_heads / layer_.num_query_groups;
    const int64_t per_group = (layer_.output_gate ? 2 * heads : heads) + 2;
    return {ours + ".self_attention.linear_qkv",
            {layer_.num_query_groups, per_group, layer_.kv_channels},
            layer_.hidden_size};
  }
  Source Proj(const std::string& ours) const {
    return {ours + ".self_attention.linear_proj",
            {layer_.hidden_size},
            layer_.num_attention_heads * layer_.value_size()};
  }
  Source Fc1(const std::string& ours) const {
    const int64_t ffn = layer_.ffn_hidden_size;
    return {ours + ".mlp.linear_fc1", layer_.gated ? Shape{2, ffn} : Shape{ffn},
            layer_.hidden_size};
  }
  Source Fc2(const std::string& ours) const {
    return {ours + ".mlp.linear_fc2", {layer_.hidden_size}, layer_.ffn_hidden_size};
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
    if (layer_.norm.kind != ops::Norm::kLayerNorm || !layer_.norm.bias) return;
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
    tensors_[first].transposed = 1;
    std::swap(tensors_[first].shape[0], tensors_[first].shape[1]);
  }

  const ModelOptions& options_;
  const TransformerOptions& layer_;
  const QkvRows qkv_;
  std::vector<HfTensor> tensors_;
};

// Tensors of BERT: "bert" for post-norm models, else "megatron-bert".
std::vector<HfTensor> HfBertTensors(const ModelOptions& options);
std::vector<HfTensor> HfT5Tensors(const ModelOptions& options);
std::vector<HfTensor> HfDecoderTensors(const HfDecoder& family, const ModelOptions& options);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_TABLE_H_
