#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr double kWidestAttention = 1 << 22;  // num_attention_heads * kv_channels

void CheckHeads(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (!check.raw().model().has_kv_channels() && !model.multi_latent_attention() &&
      check.Usable({"model.hidden_size", "model.num_attention_heads"}) &&
      model.hidden_size() % model.num_attention_heads() != 0) {
    check.Error("model.hidden_size",
                absl::StrCat("must be divisible by ", check.Named("model.num_attention_heads"),
                             ", or model.kv_channels be set"));
  }
  if (check.Usable({"model.num_attention_heads", "model.kv_channels"}) &&
      static_cast<double>(model.num_attention_heads()) * model.kv_channels() > kWidestAttention) {
    check.Error("model.num_attention_heads",
                absl::StrCat("times ", check.Named("model.kv_channels"), " must be at most ",
                             static_cast<int64_t>(kWidestAttention)));
  }
  if (!model.group_query_attention()) {
    if (check.IsWritten("model.num_query_groups") &&
        model.num_query_groups() != model.num_attention_heads()) {
      check.Error(
          "model.num_query_groups",
          absl::StrCat("needs model.group_query_attention: true; without it there are as many as ",
                       check.Named("model.num_attention_heads")));
    }
  } else if (!check.IsWritten("model.num_query_groups")) {
    if (!check.locations().IsBroken("model.num_query_groups"))
      check.Error("model.group_query_attention", "needs model.num_query_groups");
  } else {
    check.MustDivide("model.num_query_groups", "model.num_attention_heads",
                     model.num_query_groups(), model.num_attention_heads());
  }
}

void CheckRotaryPositions(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (model.multi_latent_attention()) return;  // it has channels of their own for positions
  if (!check.Usable({"model.kv_channels", "model.rotary_percent"})) return;
  const int64_t rotated =
      static_cast<int64_t>(static_cast<double>(model.kv_channels()) * model.rotary_percent());
  if (rotated < 2 || rotated % 2 != 0) {
    check.Error("model.rotary_percent",
                absl::StrCat("of ", check.Named("model.kv_channels"), " rotates ", rotated,
                             " channels; an even number of at least 2 is needed"));
  }
}

// Checks a field that says it of each layer; `none` is what is wrong where it says it of none.
void CheckPattern(ConfigChecker& check, absl::string_view path,
                  const absl::StatusOr<std::vector<bool>>& layers, absl::string_view none) {
  if (!layers.ok()) {
    check.Error(path, layers.status().message());
  } else if (!absl::c_linear_search(*layers, true)) {
    check.Error(path, none);
  }
}

void CheckAttention(ConfigChecker& check) {
  constexpr char kSkip[] = "model.window_attn_skip_freq", kNoRope[] = "model.no_rope_freq";
  constexpr char kFast[] = "model.yarn_beta_fast", kSlow[] = "model.yarn_beta_slow";
  const config::ModelConfig& model = check.resolved().model();
  if (check.IsWritten(kSkip) && check.Usable({"model.num_layers"}))
    CheckPattern(check, kSkip, WindowLayers(model), "leaves no layer with a window");
  if (check.IsWritten(kNoRope) && check.Usable({"model.num_layers"})) {
    CheckPattern(check, kNoRope, RotaryLayers(model),
                 "leaves no layer that rotates; model.position_embedding_type: none says so");
  }
  if (model.position_embedding_type() == config::PositionEmbedding::yarn &&
      check.Usable({kFast, kSlow}) && model.yarn_beta_slow() >= model.yarn_beta_fast()) {
    check.Error(kSlow, absl::StrCat("must be less than ", check.Named(kFast)));
  }
}

void CheckLongRope(ConfigChecker& check) {
  constexpr char kLong[] = "model.longrope_long_factors", kShort[] = "model.longrope_short_factors";
  const config::ModelConfig& model = check.resolved().model();
  for (const auto& [path, other] : {std::pair{kLong, kShort}, std::pair{kShort, kLong}}) {
    if (check.IsWritten(path) && !check.IsWritten(other))
      check.Error(path, absl::StrCat("needs ", other));
  }
  if (!check.IsWritten(kLong)) return;
  if (model.use_rope_scaling() || model.rotary_seq_len_interpolation_factor() != 1) {
    check.Error(kLong,
                "scales rotary positions already: leave out model.use_rope_scaling and "
                "model.rotary_seq_len_interpolation_factor");
  }
  if (!check.Usable({"model.kv_channels", "model.rotary_percent"})) return;
  const int64_t rotated =
      model.multi_latent_attention()
          ? model.qk_pos_emb_head_dim()
          : static_cast<int64_t>(static_cast<double>(model.kv_channels()) * model.rotary_percent());
  for (const auto& [path, count] : {std::pair{kLong, model.longrope_long_factors_size()},
                                    std::pair{kShort, model.longrope_short_factors_size()}}) {
    if (check.IsWritten(path) && check.Usable({path}) && count != rotated / 2) {
      check.Error(path, absl::StrCat("has ", count, " numbers; ", rotated / 2,
                                     " pairs of channels of a head are rotated"));
    }
  }
}

// Norms of all heads together, and gates, need all of a group's heads, cut evenly over the ranks.
void CheckNormsAndGates(ConfigChecker& check) {
  constexpr char kAllHeads[] = "model.qk_layernorm_all_heads";
  constexpr char kReordered[] = "model.reordered_norm";
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  const auto refuse = [&](absl::string_view path, bool broken, absl::string_view other,
                          absl::string_view because) {
    if (broken && check.Usable({other}))
      check.Error(path, absl::StrCat("cannot be used with ", check.Named(other), ": ", because));
  };
  if (model.qk_layernorm_all_heads()) {
    refuse(kAllHeads,
           config.parallel().tensor_model_parallel_size() > model.num_query_groups() &&
               check.Usable({"model.num_query_groups"}),
           "parallel.tensor_model_parallel_size", "ranks would share keys");
    refuse(kAllHeads, !check.IsDefault("parallel.tensor_parallel_mode"),
           "parallel.tensor_parallel_mode", "heads are cut by 1d tensor parallelism alone");
    refuse(kAllHeads, check.IsWritten("recompute.attention_chunk_tokens"),
           "recompute.attention_chunk_tokens", "a chunk has heads of another cut");
  }
  constexpr char kEachHead[] = "model.qk_layernorm_each_head";
  if (model.qk_layernorm_each_head()) {
    refuse(kEachHead,
           config.parallel().tensor_model_parallel_size() > model.num_query_groups() &&
               check.Usable({"model.num_query_groups"}),
           "parallel.tensor_model_parallel_size", "ranks would share keys");
    refuse(kEachHead, !check.IsDefault("parallel.tensor_parallel_mode"),
           "parallel.tensor_parallel_mode", "heads are cut by 1d tensor parallelism alone");
  }
  constexpr char kGate[] = "model.attention_output_gate";
  if (model.attention_output_gate()) {
    refuse(kGate,
           config.parallel().tensor_model_parallel_size() > model.num_query_groups() &&
               check.Usable({"model.num_query_groups"}),
           "parallel.tensor_model_parallel_size", "ranks would share a group of queries");
    refuse(kGate, !check.IsDefault("parallel.tensor_parallel_mode"),
           "parallel.tensor_parallel_mode", "heads are cut by 1d tensor parallelism alone");
    refuse(kGate, check.IsWritten("recompute.attention_chunk_tokens"),
           "recompute.attention_chunk_tokens", "chunks have no gates");
    refuse(kGate, model.v_head_dim() > 0 && model.v_head_dim() != model.kv_channels(),
           "model.v_head_dim", "gates are as wide as keys");
    refuse(kGate, config.precision().fp8_format() != config::Fp8Format::none,
           "precision.fp8_format", "the output projection keeps codes of what was not gated");
    refuse(kGate, config.optimizer().qk_clip(), "optimizer.qk_clip",
           "it finds queries and keys in groups without gates");
  }
  refuse("model.add_mlp_bias", model.add_mlp_bias() && model.residual_multiplier() != 1,
         "model.residual_multiplier", "what an MLP gives is multiplied before a bias is added");
  const config::RecomputeConfig& recompute = config.recompute();
  refuse(kReordered,
         model.reordered_norm() && absl::c_linear_search(recompute.recompute_modules(),
                                                         config::RecomputeModule::layernorm),
         "recompute.recompute_modules", "no norm stands in front of a linear layer");
}

// Branches are parallel in layers that have self-attention and an MLP.
void CheckParallelResidual(ConfigChecker& check) {
  constexpr char kParallel[] = "model.parallel_residual";
  const config::ModelConfig& model = check.resolved().model();
  if (!model.parallel_residual()) return;
  const auto refuse = [&](bool broken, absl::string_view other, absl::string_view because) {
    if (broken && check.Usable({other}))
      check.Error(kParallel,
                  absl::StrCat("cannot be used with ", check.Named(other), ": ", because));
  };
  refuse(model.has_num_experts(), "model.num_experts", "experts read what attention has added");
  refuse(model.multi_latent_attention(), "model.multi_latent_attention",
         "an MLP reads what latent attention has added");
  refuse(model.has_hybrid_layer_pattern(), "model.hybrid_layer_pattern",
         "each of its layers has one branch");
  refuse(check.IsWritten("model.mtp_num_layers"), "model.mtp_num_layers",
         "the layers of multi-token prediction have one branch behind the other");
}

void CheckRelativePositions(ConfigChecker& check) {
  constexpr char kBuckets[] = "model.relative_attention_num_buckets";
  constexpr char kDistance[] = "model.relative_attention_max_distance";
  const config::ModelConfig& model = check.resolved().model();
  if (check.Usable({kBuckets}) && model.relative_attention_num_buckets() % 2 != 0)
    check.Error(kBuckets, "must be even: an encoder has a half for each side");
  if (check.Usable({kBuckets, kDistance}) &&
      model.relative_attention_max_distance() <= model.relative_attention_num_buckets() / 2) {
    check.Error(kDistance, absl::StrCat("must be more than half of ", check.Named(kBuckets)));
  }
}

void CheckPositions(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (check.Usable({"model.seq_length", "model.max_position_embeddings"}) &&
      model.seq_length() > model.max_position_embeddings()) {
    check.Error("model.max_position_embeddings",
                absl::StrCat("must be at least ", check.Named("model.seq_length")));
  }
  if (model.position_embedding_type() == config::PositionEmbedding::rope ||
      model.position_embedding_type() == config::PositionEmbedding::yarn)
    CheckRotaryPositions(check);
  CheckLongRope(check);
  if (model.position_embedding_type() == config::PositionEmbedding::relative)
    CheckRelativePositions(check);
}

}  // namespace

void CheckModel(ConfigChecker& check) {
  CheckHeads(check);
  CheckPositions(check);
  CheckAttention(check);
  CheckNormsAndGates(check);
  CheckParallelResidual(check);
  ModelRulesOf(check.resolved().model()).Check(check);
}

}  // namespace megatron
