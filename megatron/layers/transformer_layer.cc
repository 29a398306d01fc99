#include "megatron/layers/transformer_layer.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

std::string LayerName(const TransformerOptions& options, int64_t layer) {
  if (!options.layer_name.empty()) return options.layer_name;
  return options.name + ".layers." + std::to_string(layer);
}

// Names are those of Megatron's checkpoints: a norm in front of a branch is named after the linear
// layer that reads it.
NormOptions BranchNorm(const TransformerOptions& options, const std::string& in_front,
                       const std::string& behind) {
  const std::string& name = options.post_norm ? behind : in_front;
  return {options.norm,
          name + "weight",
          name + "bias",
          options.hidden_size,
          /*partial_over_tensor=*/options.sequence_parallel,
          options.grid};
}

// The norm in front of latent attention is followed by more than one linear layer.
NormOptions AttentionNorm(const TransformerOptions& options, int64_t layer) {
  const std::string name = LayerName(options, layer);
  return BranchNorm(
      options,
      name + (options.is_latent() ? ".input_layernorm." : ".self_attention.linear_qkv.layer_norm_"),
      name + ".post_self_attn_layernorm.");
}

// The norm in front of experts is followed by no linear layer that it could be named after.
NormOptions MlpNorm(const TransformerOptions& options, int64_t layer) {
  const std::string name = LayerName(options, layer);
  return BranchNorm(options,
                    name + (options.moe.IsMoeLayer(layer) ? ".pre_mlp_layernorm."
                                                          : ".mlp.linear_fc1.layer_norm_"),
                    name + ".post_mlp_layernorm.");
}

// The name of what hands a state from token to token, in Megatron's checkpoints.
std::string MixerName(const TransformerOptions& options, int64_t layer) {
  return LayerName(options, layer) +
         (options.hybrid_layers[layer] == HybridLayer::kMamba ? ".mixer" : ".self_attention");
}

// The norm of the layer's first branch.
NormOptions FirstNorm(const TransformerOptions& options, int64_t layer) {
  if (options.HasAttention(layer)) return AttentionNorm(options, layer);
  if (options.HasMlp(layer)) return MlpNorm(options, layer);
  return BranchNorm(options, MixerName(options, layer) + ".in_proj.layer_norm_", "");
}

// Returns the gradient in front of `branch + bias` under dropout, in ctx.kept(), and adds to the
// bias's gradient. Without dropout and bias it is dy itself, unless dy is to outlive this backward.
Tensor BranchGradient(const LayerContext& ctx, const ops::Dropout& dropout, const Tensor& dy_TH,
                      const Tensor& dbias_H) {
  if (dropout.probability == 0 && dbias_H.empty() && !ctx.defers()) return dy_TH;
  const Tensor dbranch_TH =
      dropout.probability == 0 && !ctx.defers()
          ? dy_TH
          : ctx.kept()->Allocate(dy_TH.dtype(), dy_TH.shape(), "dropout gradient");
  ops::DropoutBackward(ctx.stream, dropout, dy_TH, dbranch_TH, dbias_H);
  return dbranch_TH;
}

}  // namespace

TransformerLayer::TransformerLayer(const TransformerOptions& options, int64_t layer,
                                   const ProcessGroup& tensor_group,
                                   const ExpertGroups& expert_groups)
    : name_(LayerName(options, layer)),
      dropout_layer_(options.first_dropout_layer + layer),
      post_norm_(options.post_norm),
      residual_multiplier_(options.residual_multiplier),
      hidden_dropout_(options.hidden_dropout),
      recompute_norm_(options.recompute.norm),
      dtype_(options.dtype),
      is_hybrid_(options.is_hybrid()),
      is_parallel_(options.parallel_residual) {
  if (!options.reordered_norm) {
    attention_norm_ = std::make_unique<NormLayer>(FirstNorm(options, layer));
    if (!is_hybrid_ && !options.parallel_shared_norm)
      mlp_norm_ = std::make_unique<NormLayer>(MlpNorm(options, layer));
  }
  const std::string attention = LayerName(options, layer) + ".self_attention";
  CHECK(residual_multiplier_ == 1 ||
        (!options.post_norm && !options.has_mlp_bias() && !options.cross_attention));
  CHECK(!is_hybrid_ || (!options.post_norm && !options.sandwich_norm && !options.reordered_norm &&
                        !options.cross_attention));
  CHECK(!is_parallel_ ||
        (!options.post_norm && !options.sandwich_norm && !options.reordered_norm && !is_hybrid_ &&
         !options.cross_attention && !options.is_latent() && !options.moe.IsMoeLayer(layer)));
  CHECK(is_parallel_ || !options.parallel_shared_norm);
  if (is_hybrid_ && options.hybrid_layers[layer] == HybridLayer::kMamba) {
    mamba_ = std::make_unique<MambaMixer>(options, MixerName(options, layer), layer, tensor_group);
  } else if (is_hybrid_ && options.hybrid_layers[layer] == HybridLayer::kDelta) {
    delta_ =
        std::make_unique<GatedDeltaNet>(options, MixerName(options, layer), layer, tensor_group);
  }
  if (!options.HasAttention(layer)) {
    // It has another branch.
  } else if (options.is_latent()) {
    CHECK(!options.post_norm && !options.cross_attention);
    latent_ = std::make_unique<LatentAttention>(options, attention, layer, tensor_group);
  } else {
    attention_ = std::make_unique<SelfAttention>(options, attention, layer, tensor_group);
  }
  if (options.cross_attention) {
    CHECK(!options.post_norm);
    const std::string name = LayerName(options, layer);
    cross_norm_ =
        std::make_unique<NormLayer>(BranchNorm(options, name + ".pre_cross_attn_layernorm.", ""));
    cross_ =
        std::make_unique<CrossAttention>(options, name + ".cross_attention", layer, tensor_group);
  }
  if (options.sandwich_norm || options.reordered_norm) {
    CHECK(!options.post_norm && !options.cross_attention && !options.has_mlp_bias());
    const std::string name = LayerName(options, layer);
    post_attention_norm_ =
        std::make_unique<NormLayer>(BranchNorm(options, name + ".post_self_attn_layernorm.", ""));
    post_mlp_norm_ =
        std::make_unique<NormLayer>(BranchNorm(options, name + ".post_mlp_layernorm.", ""));
  }
  const std::string name = LayerName(options, layer) + ".mlp";
  if (!options.HasMlp(layer)) {
    // It has another branch.
  } else if (options.moe.IsMoeLayer(layer)) {
    moe_ = std::make_unique<MoeLayer>(options, name, dropout_layer_, tensor_group, expert_groups);
  } else {
    mlp_ = std::make_unique<Mlp>(options, name, tensor_group);
  }
}

void TransformerLayer::Forward(const LayerContext& ctx, const RotaryTables* rotary,
                               const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  if (post_norm_) return ForwardPostNorm(ctx, rotary, x_TH, y_TH, saved);
  Arena::Scope scope(ctx.scratch);
  const Tensor branch_TH = ctx.scratch->Allocate(dtype_, x_TH.shape(), "branch");
  AddLast(ctx, ForwardBranches(ctx, rotary, LastSum(), x_TH, branch_TH, saved), y_TH);
}

void TransformerLayer::Attend(const LayerContext& ctx, const RotaryTables* rotary,
                              const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  if (attention_) attention_->Forward(ctx, rotary, x_TH, y_TH, &saved->attention);
  if (latent_) latent_->Forward(ctx, rotary, x_TH, y_TH, &saved->latent);
  if (mamba_) mamba_->Forward(ctx, x_TH, y_TH, &saved->mamba);
  if (delta_) delta_->Forward(ctx, x_TH, y_TH, &saved->delta);
}

void TransformerLayer::AttendBackward(const LayerContext& ctx, const RotaryTables* rotary,
                                      const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  if (attention_) attention_->Backward(ctx, rotary, dy_TH, dx_TH, &saved->attention);
  if (latent_) latent_->Backward(ctx, rotary, dy_TH, dx_TH, &saved->latent);
  if (mamba_) mamba_->Backward(ctx, dy_TH, dx_TH, &saved->mamba);
  if (delta_) delta_->Backward(ctx, dy_TH, dx_TH, &saved->delta);
}

void TransformerLayer::AddLast(const LayerContext& ctx, const LastSum& sum, const Tensor& y_TH) {
  ops::BiasDropoutAdd(ctx.stream, sum.dropout, sum.branch_TH, sum.bias_H, sum.residual_TH, y_TH);
}

TransformerLayer::LastSum TransformerLayer::ForwardBranches(
    const LayerContext& ctx, const RotaryTables* rotary, const LastSum& below, const Tensor& x_TH,
    const Tensor& branch_TH, Saved* saved) const {
  const TraceSpan span(ctx.stream, name_.c_str());
  CHECK(!post_norm_);
  Arena::Scope scope(ctx.scratch);
  if (is_hybrid_) return ForwardOneBranch(ctx, rotary, below, x_TH, branch_TH, saved);
  if (is_parallel_) return ForwardParallel(ctx, rotary, below, x_TH, branch_TH, saved);
  const Shape& shape = x_TH.shape();
  Arena* const norm_arena = recompute_norm_ ? ctx.scratch : ctx.saved;

  Tensor normed_TH = x_TH;
  if (attention_norm_) {
    const bool is_kept = !recompute_norm_ && !(attention_ && attention_->keeps_codes(ctx));
    normed_TH = (is_kept ? ctx.SavedBy(OffloadModule::kQkvLinear) : ctx.scratch)
                    ->Allocate(dtype_, shape, "norm output");
  }
  NormalizeInput(ctx, below, x_TH, normed_TH, saved);
  const Tensor attention_TH = BranchOutput(ctx, branch_TH);
  Attend(ctx, rotary, normed_TH, attention_TH, saved);
  if (post_attention_norm_)
    post_attention_norm_->Forward(ctx, attention_TH, branch_TH, &saved->post_attention_norm);
  Multiply(ctx, branch_TH);

  // The residual to which the next norm adds the branch, and the bias that goes with it.
  Tensor residual_TH = x_TH, bias_H = AttentionOutput().bias();
  DropoutSite site = DropoutSite::kAttentionOutput;
  if (cross_ != nullptr) {
    const Tensor attention_sum_TH = ctx.saved->Allocate(dtype_, shape, "residual");
    const Tensor cross_input_TH = norm_arena->Allocate(dtype_, shape, "norm output");
    cross_norm_->ForwardResidual(ctx, Dropout(ctx, site), branch_TH, bias_H, residual_TH,
                                 attention_sum_TH, cross_input_TH, &saved->cross_norm);
    cross_->Forward(ctx, cross_input_TH, branch_TH, &saved->cross);
    residual_TH = attention_sum_TH;
    bias_H = cross_->output().bias();
    site = DropoutSite::kCrossAttentionOutput;
  }
  const Tensor sum_TH = ctx.SavedBy(mlp_norm_ ? OffloadModule::kMlpNorm : OffloadModule::kMlp)
                            ->Allocate(dtype_, shape, "residual");
  Tensor mlp_input_TH = sum_TH;
  if (mlp_norm_) {
    const bool is_kept = !recompute_norm_ && !(mlp_ && mlp_->keeps_codes(ctx));
    mlp_input_TH = (is_kept ? ctx.SavedBy(OffloadModule::kMlp) : ctx.scratch)
                       ->Allocate(dtype_, shape, "norm output");
    mlp_norm_->ForwardResidual(ctx, Dropout(ctx, site), branch_TH, bias_H, residual_TH, sum_TH,
                               mlp_input_TH, &saved->mlp_norm);
  } else {
    AddLast(ctx, {Dropout(ctx, site), branch_TH, bias_H, residual_TH}, sum_TH);
  }
  const Tensor mlp_TH = BranchOutput(ctx, branch_TH);
  if (mlp_) mlp_->Forward(ctx, mlp_input_TH, mlp_TH, &saved->mlp);
  if (moe_) moe_->Forward(ctx, mlp_input_TH, mlp_TH, &saved->moe);
  if (post_mlp_norm_) post_mlp_norm_->Forward(ctx, mlp_TH, branch_TH, &saved->post_mlp_norm);
  Multiply(ctx, branch_TH);
  return {Dropout(ctx, DropoutSite::kMlpOutput), branch_TH, LastBias(), sum_TH};
}

void TransformerLayer::NormalizeInput(const LayerContext& ctx, const LastSum& below,
                                      const Tensor& x_TH, const Tensor& normed_TH,
                                      Saved* saved) const {
  if (below.branch_TH.empty()) {
    if (attention_norm_) attention_norm_->Forward(ctx, x_TH, normed_TH, &saved->attention_norm);
  } else if (attention_norm_) {
    attention_norm_->ForwardResidual(ctx, below.dropout, below.branch_TH, below.bias_H,
                                     below.residual_TH, x_TH, normed_TH, &saved->attention_norm);
  } else {
    AddLast(ctx, below, x_TH);
  }
}

TransformerLayer::LastSum TransformerLayer::ForwardOneBranch(
    const LayerContext& ctx, const RotaryTables* rotary, const LastSum& below, const Tensor& x_TH,
    const Tensor& branch_TH, Saved* saved) const {
  const bool keeps_codes =
      (attention_ && attention_->keeps_codes(ctx)) || (mlp_ && mlp_->keeps_codes(ctx));
  Arena* const norm_arena =
      ctx.SavedBy(has_mlp() ? OffloadModule::kMlp : OffloadModule::kQkvLinear);
  const Tensor normed_TH = (recompute_norm_ || keeps_codes ? ctx.scratch : norm_arena)
                               ->Allocate(dtype_, x_TH.shape(), "norm output");
  NormalizeInput(ctx, below, x_TH, normed_TH, saved);
  Attend(ctx, rotary, normed_TH, branch_TH, saved);
  if (mlp_) mlp_->Forward(ctx, normed_TH, branch_TH, &saved->mlp);
  if (moe_) moe_->Forward(ctx, normed_TH, branch_TH, &saved->moe);
  Multiply(ctx, branch_TH);
  return {Dropout(ctx, LastSite()), branch_TH, LastBias(), x_TH};
}

TransformerLayer::LastSum TransformerLayer::ForwardParallel(
    const LayerContext& ctx, const RotaryTables* rotary, const LastSum& below, const Tensor& x_TH,
    const Tensor& branch_TH, Saved* saved) const {
  const Shape& shape = x_TH.shape();
  const bool shares_norm = mlp_norm_ == nullptr;
  const auto norm_output = [&](OffloadModule reader, bool is_read_again) {
    return (is_read_again && !recompute_norm_ ? ctx.SavedBy(reader) : ctx.scratch)
        ->Allocate(dtype_, shape, "norm output");
  };
  const bool mlp_reads_again = !mlp_->keeps_codes(ctx);
  const Tensor normed_TH = norm_output(
      OffloadModule::kQkvLinear, !attention_->keeps_codes(ctx) || (shares_norm && mlp_reads_again));
  NormalizeInput(ctx, below, x_TH, normed_TH, saved);
  Attend(ctx, rotary, normed_TH, branch_TH, saved);
  Multiply(ctx, branch_TH);
  // The caller reads it, after this layer's scratch memory is gone.
  const Tensor sum_TH = ctx.saved->Allocate(dtype_, shape, "residual");
  AddLast(ctx,
          {Dropout(ctx, DropoutSite::kAttentionOutput), branch_TH, AttentionOutput().bias(), x_TH},
          sum_TH);
  Tensor mlp_input_TH = normed_TH;
  if (!shares_norm) {
    mlp_input_TH = norm_output(OffloadModule::kMlp, mlp_reads_again);
    mlp_norm_->Forward(ctx, x_TH, mlp_input_TH, &saved->mlp_norm);
  }
  mlp_->Forward(ctx, mlp_input_TH, branch_TH, &saved->mlp);
  Multiply(ctx, branch_TH);
  return {Dropout(ctx, DropoutSite::kMlpOutput), branch_TH, LastBias(), sum_TH};
}

void TransformerLayer::Multiply(const LayerContext& ctx, const Tensor& branch_TH) const {
  if (residual_multiplier_ != 1) ops::Scale(ctx.stream, residual_multiplier_, branch_TH);
}

Tensor TransformerLayer::Multiplied(const LayerContext& ctx, const Tensor& dy_TH) const {
  if (residual_multiplier_ == 1) return dy_TH;
  const Tensor dbranch_TH = ctx.kept()->Allocate(dtype_, dy_TH.shape(), "branch gradient");
  ops::Copy(ctx.stream, dy_TH, dbranch_TH);
  Multiply(ctx, dbranch_TH);
  return dbranch_TH;
}

Tensor TransformerLayer::BranchOutput(const LayerContext& ctx, const Tensor& branch_TH) const {
  if (post_mlp_norm_ == nullptr) return branch_TH;
  return ctx.saved->Allocate(dtype_, branch_TH.shape(), "branch");
}

Tensor TransformerLayer::NormedGradient(const LayerContext& ctx, NormLayer* norm,
                                        const NormLayer::Saved& saved, const Tensor& dy_TH) const {
  if (norm == nullptr) return dy_TH;
  const Tensor dx_TH = ctx.kept()->Allocate(dtype_, dy_TH.shape(), "norm gradient");
  norm->Backward(ctx, dy_TH, Tensor(), dx_TH, saved);
  return dx_TH;
}

void TransformerLayer::Backward(const LayerContext& ctx, const RotaryTables* rotary,
                                const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved,
                                const ResidualBiasGradients& biases) {
  const TraceSpan span(ctx.stream, name_.c_str());
  if (post_norm_) return BackwardPostNorm(ctx, rotary, dy_TH, dx_TH, saved);
  if (is_hybrid_) return BackwardOneBranch(ctx, rotary, dy_TH, dx_TH, saved, biases);
  if (is_parallel_) return BackwardParallel(ctx, rotary, dy_TH, dx_TH, saved, biases);
  Arena::Scope scope(ctx.scratch);
  const Shape& shape = dy_TH.shape();
  if (recompute_norm_ && attention_norm_) {
    AttentionInput(saved) = ctx.kept()->Allocate(dtype_, shape, "norm output");
    MlpInput(saved) = ctx.kept()->Allocate(dtype_, shape, "norm output");
    attention_norm_->Recompute(ctx, saved->attention_norm, AttentionInput(saved));
    mlp_norm_->Recompute(ctx, saved->mlp_norm, MlpInput(saved));
    if (cross_ != nullptr) {
      saved->cross.q.x_TI = ctx.kept()->Allocate(dtype_, shape, "norm output");
      cross_norm_->Recompute(ctx, saved->cross_norm, saved->cross.q.x_TI);
    }
  }
  // Without a norm in front of it, a branch's gradient is a summand of that of its sum.
  const bool has_norms = attention_norm_ != nullptr;
  const Tensor dnormed_TH =
      has_norms ? ctx.scratch->Allocate(dtype_, shape, "norm gradient") : Tensor();
  Tensor dsum_TH = ctx.scratch->Allocate(dtype_, shape, "residual gradient");

  const Tensor dmlp_TH = NormedGradient(
      ctx, post_mlp_norm_.get(), saved->post_mlp_norm,
      Multiplied(ctx, BranchGradient(ctx, Dropout(ctx, DropoutSite::kMlpOutput), dy_TH,
                                     biases.output_is_done ? Tensor() : LastBiasGradient())));
  const Tensor dmlp_input_TH = has_norms ? dnormed_TH : dsum_TH;
  if (mlp_) mlp_->Backward(ctx, dmlp_TH, dmlp_input_TH, &saved->mlp);
  if (moe_) moe_->Backward(ctx, dmlp_TH, dmlp_input_TH, &saved->moe);
  Tensor dbias_H = AttentionOutput().bias_gradient();
  if (cross_ != nullptr) {
    const Tensor dcross_bias_H = cross_->output().bias_gradient();
    mlp_norm_->Backward(ctx, dnormed_TH, dy_TH, dsum_TH, saved->mlp_norm,
                        WithSum(ctx, dcross_bias_H));
    const Tensor dcross_TH = BranchGradient(ctx, Dropout(ctx, DropoutSite::kCrossAttentionOutput),
                                            dsum_TH, WithBranch(ctx, dcross_bias_H));
    cross_->Backward(ctx, dcross_TH, dnormed_TH, &saved->cross);
    const Tensor dattention_sum_TH = ctx.scratch->Allocate(dtype_, shape, "residual gradient");
    cross_norm_->Backward(ctx, dnormed_TH, dsum_TH, dattention_sum_TH, saved->cross_norm,
                          WithSum(ctx, dbias_H));
    dsum_TH = dattention_sum_TH;
  } else if (has_norms) {
    mlp_norm_->Backward(ctx, dnormed_TH, dy_TH, dsum_TH, saved->mlp_norm, WithSum(ctx, dbias_H));
  } else {
    ops::Add(ctx.stream, dy_TH, dsum_TH);
  }

  const Tensor dattention_TH = NormedGradient(
      ctx, post_attention_norm_.get(), saved->post_attention_norm,
      Multiplied(ctx, BranchGradient(ctx, Dropout(ctx, DropoutSite::kAttentionOutput), dsum_TH,
                                     WithBranch(ctx, dbias_H))));
  if (has_norms) {
    AttendBackward(ctx, rotary, dattention_TH, dnormed_TH, saved);
    return attention_norm_->Backward(ctx, dnormed_TH, dsum_TH, dx_TH, saved->attention_norm,
                                     biases.below_H);
  }
  AttendBackward(ctx, rotary, dattention_TH, dx_TH, saved);
  ops::Add(ctx.stream, dsum_TH, dx_TH);
}

void TransformerLayer::BackwardOneBranch(const LayerContext& ctx, const RotaryTables* rotary,
                                         const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved,
                                         const ResidualBiasGradients& biases) {
  Arena::Scope scope(ctx.scratch);
  if (recompute_norm_) {
    Tensor& input_TH = has_mlp() ? MlpInput(saved) : AttentionInput(saved);
    input_TH = ctx.kept()->Allocate(dtype_, dy_TH.shape(), "norm output");
    attention_norm_->Recompute(ctx, saved->attention_norm, input_TH);
  }
  const Tensor dnormed_TH = ctx.scratch->Allocate(dtype_, dy_TH.shape(), "norm gradient");
  const Tensor dbranch_TH =
      Multiplied(ctx, BranchGradient(ctx, Dropout(ctx, LastSite()), dy_TH,
                                     biases.output_is_done ? Tensor() : LastBiasGradient()));
  AttendBackward(ctx, rotary, dbranch_TH, dnormed_TH, saved);
  if (mlp_) mlp_->Backward(ctx, dbranch_TH, dnormed_TH, &saved->mlp);
  if (moe_) moe_->Backward(ctx, dbranch_TH, dnormed_TH, &saved->moe);
  attention_norm_->Backward(ctx, dnormed_TH, dy_TH, dx_TH, saved->attention_norm, biases.below_H);
}

void TransformerLayer::BackwardParallel(const LayerContext& ctx, const RotaryTables* rotary,
                                        const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved,
                                        const ResidualBiasGradients& biases) {
  Arena::Scope scope(ctx.scratch);
  const Shape& shape = dy_TH.shape();
  const bool shares_norm = mlp_norm_ == nullptr;
  if (recompute_norm_) {
    AttentionInput(saved) = ctx.kept()->Allocate(dtype_, shape, "norm output");
    attention_norm_->Recompute(ctx, saved->attention_norm, AttentionInput(saved));
    if (shares_norm) {
      MlpInput(saved) = AttentionInput(saved);
    } else {
      MlpInput(saved) = ctx.kept()->Allocate(dtype_, shape, "norm output");
      mlp_norm_->Recompute(ctx, saved->mlp_norm, MlpInput(saved));
    }
  }
  const Tensor dnormed_TH = ctx.scratch->Allocate(dtype_, shape, "norm gradient");
  // What the MLP adds to the gradient of the norm's output, or, behind a norm of its own, to dy.
  const Tensor dother_TH = ctx.scratch->Allocate(dtype_, shape, "residual gradient");

  const Tensor dmlp_TH =
      Multiplied(ctx, BranchGradient(ctx, Dropout(ctx, DropoutSite::kMlpOutput), dy_TH,
                                     biases.output_is_done ? Tensor() : LastBiasGradient()));
  mlp_->Backward(ctx, dmlp_TH, shares_norm ? dother_TH : dnormed_TH, &saved->mlp);
  if (!shares_norm) mlp_norm_->Backward(ctx, dnormed_TH, dy_TH, dother_TH, saved->mlp_norm);

  // Both biases have the column sums of dy, and the layer above adds those of the last one alone.
  const Tensor dattention_TH =
      Multiplied(ctx, BranchGradient(ctx, Dropout(ctx, DropoutSite::kAttentionOutput), dy_TH,
                                     AttentionOutput().bias_gradient()));
  AttendBackward(ctx, rotary, dattention_TH, dnormed_TH, saved);
  if (shares_norm) ops::Add(ctx.stream, dother_TH, dnormed_TH);
  attention_norm_->Backward(ctx, dnormed_TH, shares_norm ? dy_TH : dother_TH, dx_TH,
                            saved->attention_norm, biases.below_H);
}

void TransformerLayer::ForwardPostNorm(const LayerContext& ctx, const RotaryTables* rotary,
                                       const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  const TraceSpan span(ctx.stream, name_.c_str());
  Arena::Scope scope(ctx.scratch);
  const Shape& shape = x_TH.shape();
  const Tensor branch_TH = ctx.scratch->Allocate(dtype_, shape, "branch");
  attention_->Forward(ctx, rotary, x_TH, branch_TH, &saved->attention);
  const Tensor attention_sum_TH =
      ctx.SavedBy(OffloadModule::kAttentionNorm)->Allocate(dtype_, shape, "residual");
  const Tensor normed_TH = (recompute_norm_ ? ctx.scratch : ctx.SavedBy(OffloadModule::kMlp))
                               ->Allocate(dtype_, shape, "norm output");
  attention_norm_->ForwardResidual(ctx, Dropout(ctx, DropoutSite::kAttentionOutput), branch_TH,
                                   attention_->output().bias(), x_TH, attention_sum_TH, normed_TH,
                                   &saved->attention_norm);
  if (mlp_) mlp_->Forward(ctx, normed_TH, branch_TH, &saved->mlp);
  if (moe_) moe_->Forward(ctx, normed_TH, branch_TH, &saved->moe);
  const Tensor mlp_sum_TH =
      ctx.SavedBy(OffloadModule::kMlpNorm)->Allocate(dtype_, shape, "residual");
  mlp_norm_->ForwardResidual(ctx, Dropout(ctx, DropoutSite::kMlpOutput), branch_TH, LastBias(),
                             normed_TH, mlp_sum_TH, y_TH, &saved->mlp_norm);
}

void TransformerLayer::BackwardPostNorm(const LayerContext& ctx, const RotaryTables* rotary,
                                        const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const Shape& shape = dy_TH.shape();
  if (recompute_norm_) {
    MlpInput(saved) = ctx.kept()->Allocate(dtype_, shape, "norm output");
    attention_norm_->Recompute(ctx, saved->attention_norm, MlpInput(saved));
  }
  const Tensor dsum_TH = ctx.scratch->Allocate(dtype_, shape, "residual gradient");
  const Tensor dnormed_TH = ctx.scratch->Allocate(dtype_, shape, "norm gradient");
  mlp_norm_->Backward(ctx, dy_TH, Tensor(), dsum_TH, saved->mlp_norm,
                      WithSum(ctx, LastBiasGradient()));
  const Tensor dmlp_TH = BranchGradient(ctx, Dropout(ctx, DropoutSite::kMlpOutput), dsum_TH,
                                        WithBranch(ctx, LastBiasGradient()));
  if (mlp_) mlp_->Backward(ctx, dmlp_TH, dnormed_TH, &saved->mlp);
  if (moe_) moe_->Backward(ctx, dmlp_TH, dnormed_TH, &saved->moe);
  ops::Add(ctx.stream, dsum_TH, dnormed_TH);

  const Tensor dbias_H = attention_->output().bias_gradient();
  attention_norm_->Backward(ctx, dnormed_TH, Tensor(), dsum_TH, saved->attention_norm,
                            WithSum(ctx, dbias_H));
  const Tensor dattention_TH = BranchGradient(ctx, Dropout(ctx, DropoutSite::kAttentionOutput),
                                              dsum_TH, WithBranch(ctx, dbias_H));
  attention_->Backward(ctx, rotary, dattention_TH, dx_TH, &saved->attention);
  ops::Add(ctx.stream, dsum_TH, dx_TH);
}

void TransformerLayer::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  const TraceSpan span(ctx.stream, name_.c_str());
  if (mlp_) mlp_->BackwardWeight(ctx, &saved->mlp);
  if (moe_) moe_->BackwardWeight(ctx, &saved->moe);
  if (cross_) cross_->BackwardWeight(ctx, &saved->cross);
  if (attention_) attention_->BackwardWeight(ctx, &saved->attention);
  if (latent_) latent_->BackwardWeight(ctx, &saved->latent);
  if (mamba_) mamba_->BackwardWeight(ctx, &saved->mamba);
  if (delta_) delta_->BackwardWeight(ctx, &saved->delta);
}

void TransformerLayer::AppendParameters(std::vector<Parameter*>* out) {
  if (attention_norm_) attention_norm_->AppendParameters(out);
  if (attention_) attention_->AppendParameters(out);
  if (latent_) latent_->AppendParameters(out);
  if (mamba_) mamba_->AppendParameters(out);
  if (delta_) delta_->AppendParameters(out);
  if (post_attention_norm_) post_attention_norm_->AppendParameters(out);
  if (cross_ != nullptr) {
    cross_norm_->AppendParameters(out);
    cross_->AppendParameters(out);
  }
  if (mlp_norm_) mlp_norm_->AppendParameters(out);
  if (mlp_) mlp_->AppendParameters(out);
  if (moe_) moe_->AppendParameters(out);
  if (post_mlp_norm_) post_mlp_norm_->AppendParameters(out);
}

}  // namespace megatron
