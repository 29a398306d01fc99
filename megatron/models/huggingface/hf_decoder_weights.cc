// The tensors of a family of decoders.
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_mixers.h"
#include "megatron/models/huggingface/hf_table.h"

namespace megatron {
namespace {

// The names of a layer's experts: one MLP is `prefix` and these.
struct MlpNames {
  const char* gate;
  const char* up;
  const char* down;
};

constexpr MlpNames kMlp = {".gate_proj", ".up_proj", ".down_proj"};
constexpr MlpNames kMixtralExpert = {".w1", ".w3", ".w2"};

class DecoderTable : public HfTable {
 public:
  DecoderTable(const HfDecoder& family, const ModelOptions& options)
      : HfTable(options, family.interleaved), family_(family), names_(family.names) {}

  std::vector<HfTensor> Build() {
    AddTable(absl::StrCat(names_.embedding, ".weight"), "embedding.word_embeddings.weight",
             options_.vocab_size);
    if (options_.learned_positions) {
      AddMatrix(absl::StrCat(names_.positions, ".weight"), "embedding.position_embeddings.weight",
                {options_.max_positions, layer_.hidden_size}, options_.max_positions, SameRow);
    }
    for (int64_t i = 0; i < layer_.num_layers; ++i) {
      if (family_.is_hybrid()) {
        AddHybridLayer(i);
      } else {
        AddLayer(i);
      }
    }
    AddNorm(names_.final_norm,
            family_.is_hybrid() ? "decoder.final_norm.weight" : "decoder.final_layernorm.weight");
    if (!options_.tied_embeddings)
      AddTable(absl::StrCat(names_.head, ".weight"), "output_layer.weight", options_.vocab_size);
    if (options_.output_bias) {
      AddVector(absl::StrCat(names_.head, ".bias"), "output_layer.bias",
                {options_.padded_vocab_size}, options_.vocab_size, SameRow);
    }
    return std::move(tensors_);
  }

 private:
  bool IsMamba2() const { return family_.mixers == HfMixers::kMamba2; }
  bool IsGranite() const { return family_.is_granite(); }

  // `weight` is the norm's gain here. What a LayerNorm adds has the same name but for the end.
  void AddNorm(const std::string& theirs, const std::string& weight) {
    absl::string_view name = weight;
    absl::ConsumeSuffix(&name, "weight");
    HfTable::AddNorm(theirs, weight, absl::StrCat(name, "bias"));
  }

  // One of our layers, which is a layer there or half of one.
  void AddHybridLayer(int64_t i) {
    const int64_t number = i * HfLayers(family_, layer_) / layer_.num_layers;
    const std::string theirs = absl::StrCat(names_.layers, number);
    const std::string ours = absl::StrCat("decoder.layers.", i);
    const bool bamba = family_.mixers == HfMixers::kBamba;
    switch (layer_.hybrid_layers[i]) {
      case HybridLayer::kMamba:
        AddNorm(theirs + (IsMamba2() ? ".norm" : ".input_layernorm"),
                ours + ".mixer.in_proj.layer_norm_weight");
        return AddMamba(theirs + (IsMamba2() ? ".mixer" : ".mamba"), ours + ".mixer");
      case HybridLayer::kDelta:
        AddNorm(theirs + ".input_layernorm", ours + ".self_attention.in_proj.layer_norm_weight");
        return AddDelta(theirs + ".linear_attn", ours + ".self_attention");
      case HybridLayer::kAttention:
        AddLayerNorm(theirs + ".input_layernorm", Qkv(ours).name);
        return AddAttention(theirs + ".self_attn", ours);
      case HybridLayer::kMlp:
        AddNorm(theirs + (bamba ? ".pre_ff_layernorm" : ".post_attention_layernorm"),
                MlpNorm(i, ours));
        if (layer_.moe.IsMoeLayer(i)) return AddExperts(theirs, ours + ".mlp");
        return AddMlp(theirs + (bamba         ? ".feed_forward"
                                : IsGranite() ? ".shared_mlp"
                                              : ".mlp"),
                      Fc1(ours), Fc2(ours));
    }
  }

  // The norm in front of an MLP or experts.
  std::string MlpNorm(int64_t i, const std::string& ours) const {
    return layer_.moe.IsMoeLayer(i) ? ours + ".pre_mlp_layernorm.weight"
                                    : Fc1(ours).name + ".layer_norm_weight";
  }

  // Returns our row of a matrix whose rows are parts of so many a group. There a part of all groups
  // stands behind the part before, here the parts of a group stand together.
  static Row ByGroups(int64_t groups, std::vector<int64_t> parts) {
    return [groups, parts = std::move(parts)](int64_t r) {
      const int64_t all = std::accumulate(parts.begin(), parts.end(), int64_t{0});
      int64_t begin = 0;  // of the part in its group
      for (const int64_t part : parts) {
        if (r < groups * part) return r / part * all + begin + r % part;
        r -= groups * part;
        begin += part;
      }
      return all * groups;
    };
  }

  // A Mamba-2 mixer: gates, x, B and C of the states, and steps.
  void AddMamba(const std::string& theirs, const std::string& ours) {
    constexpr int64_t kTaps = 4;
    const MambaOptions& mamba = layer_.mamba;
    const int64_t inner = mamba.num_heads * mamba.head_dim, groups = mamba.num_groups;
    const int64_t channels = inner / groups, heads = mamba.num_heads / groups;
    const int64_t state = mamba.state_dim, convolved = channels + 2 * state;
    const int64_t packed = channels + convolved + heads;
    AddMatrix(theirs + ".in_proj.weight", ours + ".in_proj.weight",
              {groups, packed, layer_.hidden_size}, groups * packed,
              ByGroups(groups, {channels, channels, state, state, heads}));
    const Row taps = ByGroups(groups, {channels, state, state});
    AddConvolution(theirs, ours, {groups, convolved, kTaps}, taps);
    AddVector(theirs + ".conv1d.bias", ours + ".conv1d.bias", {groups, convolved},
              groups * convolved, taps);
    for (const char* name : {".dt_bias", ".A_log", ".D"})
      AddPlain(name, mamba.num_heads, theirs, ours);
    AddPlain(".norm.weight", inner, theirs, ours);
    AddMatrix(theirs + ".out_proj.weight", ours + ".out_proj.weight", {layer_.hidden_size, inner},
              layer_.hidden_size, SameRow);
  }

  // A gated delta net. Here a group is a key head and its value heads: q, k, v, gates, betas and
  // decays.
  // There in_proj_qkvz has the first four of each group and in_proj_ba the others, and the
  // convolution has the queries of all groups, then all keys, then all values.
  void AddDelta(const std::string& theirs, const std::string& ours) {
    const DeltaOptions& delta = layer_.delta;
    const int64_t groups = delta.num_key_heads, key = delta.key_head_dim;
    const int64_t heads = delta.num_value_heads / groups, values = heads * delta.value_head_dim;
    const int64_t all_values = groups * values;
    const int64_t vectors = 2 * key + 2 * values, packed = vectors + 2 * heads;
    const Shape in_proj = {groups, packed, layer_.hidden_size};
    AddMatrix(theirs + ".in_proj_qkvz.weight", ours + ".in_proj.weight", in_proj, groups * vectors,
              [=](int64_t r) { return r / vectors * packed + r % vectors; });
    AddMatrix(theirs + ".in_proj_ba.weight", ours + ".in_proj.weight", in_proj, groups * 2 * heads,
              [=](int64_t r) { return r / (2 * heads) * packed + vectors + r % (2 * heads); });
    const int64_t convolved = 2 * key + values;
    AddConvolution(theirs, ours, {groups, convolved, delta.conv_taps},
                   ByGroups(groups, {key, key, values}));
    for (const char* name : {".dt_bias", ".A_log"})
      AddPlain(name, delta.num_value_heads, theirs, ours);
    AddVector(theirs + ".norm.weight", ours + ".out_norm.weight", {delta.value_head_dim},
              delta.value_head_dim, SameRow);
    AddMatrix(theirs + ".out_proj.weight", ours + ".out_proj.weight",
              {layer_.hidden_size, all_values}, layer_.hidden_size, SameRow);
  }

  // The taps of a convolution of each channel by itself.
  void AddConvolution(const std::string& theirs, const std::string& ours, const Shape& shape,
                      Row row) {
    const int64_t channels = shape[0] * shape[1];
    AddMatrix(theirs + ".conv1d.weight", ours + ".conv1d.weight", shape, channels, std::move(row))
        ->shape = {channels, 1, shape[2]};
  }

  // A vector of the same name here and there.
  void AddPlain(const char* name, int64_t size, const std::string& theirs,
                const std::string& ours) {
    AddVector(theirs + name, ours + name, {size}, size, SameRow);
  }

  void AddLayer(int64_t i) {
    const std::string theirs = absl::StrCat(names_.layers, i);
    const std::string ours = absl::StrCat("decoder.layers.", i);
    const bool experts = layer_.moe.IsMoeLayer(i);
    const bool has_falcon_norms = family_.branches == HfBranches::kFalcon &&
                                  layer_.parallel_residual && !layer_.parallel_shared_norm;
    if (family_.is_latent()) {
      AddNorm(theirs + ".input_layernorm", ours + ".input_layernorm.weight");
      AddLatentAttention(theirs + ".self_attn.", ours);
    } else if (layer_.reordered_norm) {
      AddAttention(theirs + ".self_attn", ours);
    } else {
      AddLayerNorm(theirs + (has_falcon_norms ? ".ln_attn" : names_.input_norm), Qkv(ours).name);
      AddAttention(theirs + names_.attention, ours);
    }
    const std::string mlp_norm = MlpNorm(i, ours);
    if (layer_.reordered_norm) {
      AddNorm(theirs + ".post_attention_layernorm", ours + ".post_self_attn_layernorm.weight");
    } else if (layer_.sandwich_norm && family_.gemma) {
      AddNorm(theirs + ".post_attention_layernorm", ours + ".post_self_attn_layernorm.weight");
      AddNorm(theirs + ".pre_feedforward_layernorm", mlp_norm);
    } else if (has_falcon_norms) {
      AddNorm(theirs + ".ln_mlp", mlp_norm);
    } else if (!layer_.parallel_shared_norm) {
      if (layer_.sandwich_norm)
        AddNorm(theirs + ".post_self_attn_layernorm", ours + ".post_self_attn_layernorm.weight");
      AddNorm(theirs + names_.mlp_norm, mlp_norm);
    }
    if (experts) {
      AddExperts(theirs, ours + ".mlp");
    } else {
      AddMlp(theirs + ".mlp", Fc1(ours), Fc2(ours));
    }
    if (layer_.sandwich_norm || layer_.reordered_norm) {
      const bool gemma = family_.gemma || layer_.reordered_norm;
      AddNorm(theirs + (gemma ? ".post_feedforward_layernorm" : ".post_mlp_layernorm"),
              ours + ".post_mlp_layernorm.weight");
    }
  }

  void AddAttention(const std::string& theirs, const std::string& layer) {
    const QkvRows qkv = qkv_;
    const Source ours = Qkv(layer);
    const bool bias = layer_.qkv_bias;
    if (family_.fused) {
      AddLinear(theirs + ".qkv_proj", ours, bias, qkv.query_rows() + 2 * qkv.key_rows(),
                [qkv](int64_t r) { return qkv.Concatenated(r); });
    } else if (family_.grouped_qkv) {
      AddLinear(theirs + names_.grouped_qkv, ours, bias, qkv.query_rows() + 2 * qkv.key_rows(),
                [qkv](int64_t r) { return qkv.Grouped(r); });
    } else {
      if (family_.output_gate) {
        AddLinear(theirs + ".q_proj", ours, bias, 2 * qkv.query_rows(),
                  [qkv](int64_t r) { return qkv.QueryOrGate(r); });
      } else {
        AddLinear(theirs + ".q_proj", ours, bias, qkv.query_rows(),
                  [qkv](int64_t r) { return qkv.Query(r); });
      }
      AddLinear(theirs + ".k_proj", ours, bias, qkv.key_rows(),
                [qkv](int64_t r) { return qkv.Key(r); });
      AddLinear(theirs + ".v_proj", ours, bias, qkv.key_rows(),
                [qkv](int64_t r) { return qkv.Value(r); });
    }
    const std::string attention = layer + ".self_attention";
    if (layer_.qk_norm) {
      AddHeadNorm(theirs + ".q_", attention + ".q_layernorm.weight", layer_.num_attention_heads);
      AddHeadNorm(theirs + ".k_", attention + ".k_layernorm.weight", layer_.num_query_groups);
    }
    if (family_.sinks) {
      const int64_t heads = layer_.num_attention_heads;
      AddVector(theirs + ".sinks", attention + ".core_attention.softmax_offset", {heads}, heads,
                SameRow);
    }
    AddLinear(theirs + names_.attention_output, Proj(layer), layer_.linear_bias, layer_.hidden_size,
              SameRow);
  }

  // The gains of so many heads, or of each of them.
  void AddHeadNorm(const std::string& theirs, const std::string& ours, int64_t heads) {
    const QkvRows qkv = qkv_;
    const int64_t width = layer_.kv_channels;
    const Row rotated = [qkv, width](int64_t r) {
      return r / width * width + qkv.Rotated(r % width);
    };
    const Shape of_heads = {heads, width};
    switch (family_.head_gains) {
      case HfHeadGains::kShared: {
        const int64_t gains = family_.qk_norm_all_heads ? heads * width : width;
        return AddVector(theirs + "norm.weight", ours, {gains}, gains, rotated);
      }
      case HfHeadGains::kOneTensor:
        AddVector(theirs + "norm.weight", ours, of_heads, heads * width, rotated);
        tensors_.back().shape = {heads, width};
        return;
      case HfHeadGains::kTensors:
        for (int64_t head = 0; head < heads; ++head) {
          AddVector(absl::StrCat(theirs, "layernorm.norms.", head, ".weight"), ours, of_heads,
                    width, rotated);
          tensors_.back().part = head;
          tensors_.back().parts = heads;
        }
    }
  }

  void AddLatentAttention(const std::string& theirs, const std::string& layer) {
    const std::string ours = layer + ".self_attention.";
    const LatentOptions& latent = layer_.latent;
    const int64_t heads = layer_.num_attention_heads, keys = layer_.kv_channels;
    const auto add = [&](const char* name, const char* linear, const Shape& outputs,
                         int64_t inputs) {
      AddLinear(theirs + name, {ours + linear, outputs, inputs}, /*bias=*/false, outputs.numel(),
                SameRow);
    };
    const auto add_norm = [&](const char* name, const char* linear, int64_t width) {
      AddVector(theirs + name + ".weight", ours + linear + ".layer_norm_weight", {width}, width,
                SameRow);
    };
    if (latent.q_rank > 0) {
      add("q_a_proj", "linear_q_down_proj", {latent.q_rank}, layer_.hidden_size);
      add_norm("q_a_layernorm", "linear_q_up_proj", latent.q_rank);
      add("q_b_proj", "linear_q_up_proj", {heads, keys}, latent.q_rank);
    } else {
      add("q_proj", "linear_q_proj", {heads, keys}, layer_.hidden_size);
    }
    add("kv_a_proj_with_mqa", "linear_kv_down_proj", {latent.kv_rank + latent.rotated_size},
        layer_.hidden_size);
    add_norm("kv_a_layernorm", "linear_kv_up_proj", latent.kv_rank);
    add("kv_b_proj", "linear_kv_up_proj", {heads, keys - latent.rotated_size + layer_.value_size()},
        latent.kv_rank);
    add("o_proj", "linear_proj", {layer_.hidden_size}, heads * layer_.value_size());
  }

  // An MLP of its own parameters.
  void AddMlp(const std::string& theirs, const Source& fc1, const Source& fc2) {
    const bool bias = layer_.has_mlp_bias();
    const int64_t ffn = fc2.inputs;
    if (IsGranite()) {
      AddLinear(theirs + ".input_linear", fc1, bias, 2 * ffn, SameRow);
      return AddLinear(theirs + ".output_linear", fc2, bias, layer_.hidden_size, SameRow);
    }
    if (!layer_.gated) {
      AddLinear(theirs + names_.fc1, fc1, bias, ffn, SameRow);
      return AddLinear(theirs + names_.fc2, fc2, bias, layer_.hidden_size, SameRow);
    }
    if (family_.fused || family_.fused_gate) {
      AddLinear(theirs + ".gate_up_proj", fc1, bias, 2 * ffn, SameRow);
    } else {
      AddLinear(theirs + ".gate_proj", fc1, bias, ffn, SameRow);
      AddLinear(theirs + ".up_proj", fc1, bias, ffn, [ffn](int64_t r) { return ffn + r; });
    }
    AddLinear(theirs + ".down_proj", fc2, bias, layer_.hidden_size, SameRow);
  }

  void AddExperts(const std::string& theirs, const std::string& ours) {
    if (IsGranite()) return AddGraniteExperts(theirs, ours);
    const bool mixtral = family_.experts == HfExperts::kMixtral;
    const std::string mlp = theirs + (mixtral ? ".block_sparse_moe" : ".mlp");
    const bool gpt_oss = family_.experts == HfExperts::kGptOss;
    AddLinear(mlp + (gpt_oss ? ".router" : ".gate"),
              {ours + ".router", {layer_.moe.num_experts}, layer_.hidden_size}, layer_.linear_bias,
              layer_.moe.num_experts, SameRow);
    if (gpt_oss) {
      AddTogether(mlp + ".experts", ours + ".experts.experts");
    } else {
      for (int64_t e = 0; e < layer_.moe.num_experts; ++e)
        AddExpert(absl::StrCat(mlp, ".experts.", e), ours + ".experts.experts", e,
                  mixtral ? kMixtralExpert : kMlp);
    }
    if (family_.experts == HfExperts::kDeepSeekV3) {
      const int64_t experts = layer_.moe.num_experts;
      AddVector(mlp + ".gate.e_score_correction_bias",
                layer_.moe.expert_bias ? ours + ".router.expert_bias" : "", {experts}, experts,
                SameRow);
      tensors_.back().is_state = true;
    }
    const int64_t ffn = layer_.moe.shared_ffn_hidden_size;
    if (ffn == 0) return;
    const std::string shared = ours + ".shared_experts";
    AddMlp(mlp + (family_.is_deepseek() ? ".shared_experts" : ".shared_expert"),
           {shared + ".linear_fc1", {2, ffn}, layer_.hidden_size},
           {shared + ".linear_fc2", {layer_.hidden_size}, ffn});
    if (!family_.gated_shared_expert) return;
    AddMatrix(mlp + ".shared_expert_gate.weight", shared + ".gate_weight", {1, layer_.hidden_size},
              1, SameRow);
  }

  // All experts in one tensor, whose order is ours, and the shared one beside them.
  void AddGraniteExperts(const std::string& theirs, const std::string& ours) {
    const int64_t experts = layer_.moe.num_experts, hidden = layer_.hidden_size;
    const int64_t ffn = layer_.moe.ffn_hidden_size, shared = layer_.moe.shared_ffn_hidden_size;
    const std::string moe = theirs + ".block_sparse_moe";
    AddMatrix(moe + ".router.layer.weight", ours + ".router.weight", {experts, hidden}, experts,
              SameRow);
    AddMatrix(moe + ".input_linear.weight", ours + ".experts.experts.linear_fc1.weight",
              {experts, 2, ffn, hidden}, experts * 2 * ffn, SameRow)
        ->shape = {experts, 2 * ffn, hidden};
    AddMatrix(moe + ".output_linear.weight", ours + ".experts.experts.linear_fc2.weight",
              {experts, hidden, ffn}, experts * hidden, SameRow)
        ->shape = {experts, hidden, ffn};
    if (shared == 0) return;
    AddMlp(theirs + ".shared_mlp", {ours + ".shared_experts.linear_fc1", {2, shared}, hidden},
           {ours + ".shared_experts.linear_fc2", {hidden}, shared});
  }

  // One of the experts of [experts, 2, I, H] and [experts, H, I].
  void AddExpert(const std::string& theirs, const std::string& ours, int64_t expert,
                 const MlpNames& names) {
    const int64_t ffn = layer_.moe.ffn_hidden_size, hidden = layer_.hidden_size;
    const int64_t experts = layer_.moe.num_experts;
    const Shape fc1 = {experts, 2, ffn, hidden}, fc2 = {experts, hidden, ffn};
    const auto add = [&](const char* name, const char* linear, const Shape& shape, int64_t rows,
                         Row row) {
      HfTensor* const tensor = AddMatrix(absl::StrCat(theirs, name, ".weight"),
                                         absl::StrCat(ours, linear), shape, rows, std::move(row));
      tensor->part = expert;
      tensor->parts = experts;
    };
    add(names.gate, ".linear_fc1.weight", fc1, ffn, SameRow);
    add(names.up, ".linear_fc1.weight", fc1, ffn, [ffn](int64_t r) { return ffn + r; });
    add(names.down, ".linear_fc2.weight", fc2, hidden, SameRow);
  }

  // gpt_oss: all experts in one tensor, [experts, in, out], where gates and ups take turns.
  void AddTogether(const std::string& theirs, const std::string& ours) {
    const int64_t ffn = layer_.moe.ffn_hidden_size, hidden = layer_.hidden_size;
    const int64_t experts = layer_.moe.num_experts;
    const auto in_turn = [ffn](int64_t r) {
      const int64_t expert = r / (2 * ffn), of_expert = r % (2 * ffn);
      return (2 * expert + of_expert % 2) * ffn + of_expert / 2;
    };
    const auto add = [&](const char* name, const char* linear, const Shape& shape, int64_t rows,
                         Row row) {
      HfTensor* const tensor = AddMatrix(absl::StrCat(theirs, name), absl::StrCat(ours, linear),
                                         shape, rows, std::move(row));
      tensor->transposed = experts;
      tensor->shape = {experts, tensor->columns, rows / experts};
    };
    const auto add_bias = [&](const char* name, const char* linear, const Shape& shape, Row row) {
      AddVector(absl::StrCat(theirs, name), absl::StrCat(ours, linear), shape, shape.numel(),
                std::move(row));
      tensors_.back().shape = {experts, shape.numel() / experts};
    };
    add(".gate_up_proj", ".linear_fc1.weight", {experts, 2, ffn, hidden}, experts * 2 * ffn,
        in_turn);
    add_bias(".gate_up_proj_bias", ".linear_fc1.bias", {experts, 2, ffn}, in_turn);
    add(".down_proj", ".linear_fc2.weight", {experts, hidden, ffn}, experts * hidden, SameRow);
    add_bias(".down_proj_bias", ".linear_fc2.bias", {experts, hidden}, SameRow);
  }

  const HfDecoder& family_;
  const HfNames& names_;
};

}  // namespace

std::vector<HfTensor> HfDecoderTensors(const HfDecoder& family, const ModelOptions& options) {
  return DecoderTable(family, options).Build();
}

}  // namespace megatron
