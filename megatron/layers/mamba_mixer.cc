#include "megatron/layers/mamba_mixer.h"

#include <cmath>

#include "glog/logging.h"
#include "megatron/layers/context_heads.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/parameter_gradient.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The token itself and three in front of it, as in Megatron.
constexpr int64_t kTaps = 4;

LinearOptions InLinear(const TransformerOptions& options, const std::string& name) {
  const MambaOptions& mamba = options.mamba;
  const int64_t heads = mamba.num_heads / mamba.num_groups;
  const int64_t inner = heads * mamba.head_dim;
  LinearOptions linear;
  linear.name = name + ".in_proj";
  linear.input_size = options.hidden_size;
  linear.matrix.parts = {inner, inner, mamba.state_dim, mamba.state_dim, heads};
  linear.output_shape = {mamba.num_groups, 2 * inner + 2 * mamba.state_dim + heads};
  linear.bias = false;
  linear.init_std = options.init_std;
  linear.overlap = options.tp_comm_overlap;
  return linear;
}

LinearOptions OutLinear(const TransformerOptions& options, const std::string& name) {
  LinearOptions linear;
  linear.name = name + ".out_proj";
  linear.input_size = options.mamba.num_heads * options.mamba.head_dim;
  linear.output_shape = {options.hidden_size};
  linear.bias = false;
  linear.sequence_parallel = options.sequence_parallel;
  linear.init_std = options.output_init_std;
  linear.overlap = options.tp_comm_overlap;
  return linear;
}

// A parameter whose dim 0 is cut over tensor-parallel ranks.
Parameter Cut(const std::string& name, const Shape& shape, const Initializer& initializer,
              const ProcessGroup& tensor_group) {
  Parameter parameter;
  parameter.name = name;
  parameter.sharding = SplitOverTensor(shape, 0, tensor_group.size(), tensor_group.rank());
  parameter.initializer = initializer;
  parameter.weight_decay = shape.rank() > 2;
  return parameter;
}

}  // namespace

MambaMixer::MambaMixer(const TransformerOptions& options, const std::string& name, int64_t layer,
                       const ProcessGroup& tensor_group)
    : layer_(layer),
      groups_(options.mamba.num_groups / tensor_group.size()),
      heads_(options.mamba.num_heads / options.mamba.num_groups),
      channels_(options.mamba.head_dim),
      state_(options.mamba.state_dim),
      norm_{options.norm.epsilon, /*norm_before_gate=*/false},
      norm_all_groups_(options.mamba.norm_all_groups),
      dtype_(options.dtype),
      in_(InLinear(options, name), tensor_group),
      out_(OutLinear(options, name), tensor_group) {
  const MambaOptions& mamba = options.mamba;
  CHECK(!options.grid.is_grid() && !options.float8.enabled) << name;
  CHECK_EQ(mamba.num_heads % mamba.num_groups, 0) << name;
  norm_.columns = mamba.num_heads * mamba.head_dim;
  const auto make = [&](const char* part, const Shape& shape, const Initializer& initializer) {
    return Cut(name + part, shape, initializer, tensor_group);
  };
  const Initializer taps = Initializer::Uniform(1 / std::sqrt(static_cast<float>(kTaps)));
  conv_weight_ = make(".conv1d.weight", {mamba.num_groups, convolved(), kTaps}, taps);
  conv_bias_ = make(".conv1d.bias", {mamba.num_groups, convolved()}, taps);
  step_bias_ = make(".dt_bias", {mamba.num_heads}, Initializer::StepBias(0.001f, 0.1f));
  a_log_ = make(".A_log", {mamba.num_heads}, Initializer::LogUniform(1, 16));
  skip_ = make(".D", {mamba.num_heads}, Initializer::Ones());
  norm_weight_ = make(".norm.weight", {mamba.num_groups * inner()}, Initializer::Ones());
}

StateShapes MambaMixer::ShapesOf(const TransformerOptions& options, int ranks) {
  const MambaOptions& mamba = options.mamba;
  const int64_t groups = mamba.num_groups / ranks, heads = mamba.num_heads / ranks;
  const int64_t convolved = heads / groups * mamba.head_dim + 2 * mamba.state_dim;
  return {{heads, mamba.state_dim, mamba.head_dim}, {kTaps - 1, groups, convolved}};
}

ops::CausalConvInputs MambaMixer::ConvInputs(const LayerContext& ctx,
                                             const Tensor& packed_TGS) const {
  return {ConvInput(packed_TGS), ShareOf(ctx, conv_weight_.data), ShareOf(ctx, conv_bias_.data)};
}

ops::StateSpaceInputs MambaMixer::Inputs(const LayerContext& ctx, const Tensor& conv_TGK,
                                         const Tensor& packed_TGS) const {
  return {conv_TGK.Slice(2, 0, inner()).SplitDim(2, channels_),
          conv_TGK.Slice(2, inner(), inner() + state_),
          conv_TGK.Slice(2, inner() + state_, convolved()),
          Steps(packed_TGS),
          ShareOf(ctx, step_bias_.data),
          ShareOf(ctx, a_log_.data),
          ShareOf(ctx, skip_.data)};
}

ops::GatedNorm MambaMixer::NormOf(const Saved& saved) const {
  ops::GatedNorm norm = norm_;
  norm.squares_T = saved.squares_T;
  return norm;
}

ops::GatedNormInputs MambaMixer::NormInputs(const LayerContext& ctx, const Saved& saved) const {
  return {ByGroups(saved.y_TGRP), Gates(saved.packed_TGS), ShareOf(ctx, Gains(norm_weight_.data))};
}

// Both groups of ranks have the same tokens, in the same order.
void MambaMixer::SumOverRanks(const LayerContext& ctx, const Tensor& sums_T) {
  ctx.tensor_group.AllReduce(sums_T, ReduceOp::kSum, ctx.stream);
  ctx.context_group.AllReduce(sums_T, ReduceOp::kSum, ctx.stream);
}

Tensor MambaMixer::Convolve(const LayerContext& ctx, const Tensor& packed_TGS) const {
  const Tensor conv_TGK = ctx.scratch->Allocate(
      dtype_, {packed_TGS.dim(0), packed_TGS.dim(1), convolved()}, "mamba convolution");
  const ops::CausalConvInputs in = ConvInputs(ctx, packed_TGS);
  if (ctx.cached == nullptr) {
    ops::CausalConvForward(ctx.stream, ctx.batch->cu_seqlens, in, conv_TGK);
  } else {
    ops::CausalConvContinue(ctx.stream, ctx.batch->cu_seqlens, ctx.batch->position_T, in,
                            ctx.cached->states->Recent(layer_), conv_TGK);
  }
  return conv_TGK;
}

void MambaMixer::Recur(const LayerContext& ctx, const ops::StateSpaceInputs& in,
                       const Tensor& y_TGRP) const {
  if (ctx.cached != nullptr) {
    return ops::StateSpaceContinue(ctx.stream, ctx.batch->cu_seqlens, ctx.batch->position_T, in,
                                   ctx.cached->states->States(layer_), y_TGRP);
  }
  Arena::Scope scope(ctx.scratch);
  const Tensor states =
      ctx.scratch->Allocate(DType::kFloat32, ops::StateSpaceStates(in), "mamba states");
  ops::StateSpaceForward(ctx.stream, ctx.batch->cu_seqlens, in, states, y_TGRP);
}

void MambaMixer::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                         Saved* saved) const {
  const TraceSpan span(ctx.stream, "mamba");
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape packed = {tokens, groups_, inner() + convolved() + heads_};
  const Shape by_groups = {tokens, groups_, inner()};
  saved->packed_TGS = ctx.saved->Allocate(dtype_, ShareShape(ctx, packed), "mamba projection");
  {
    Arena::Scope of_projection(ctx.scratch);
    const Tensor mine_TGS = OwnMemory(ctx, saved->packed_TGS, packed, "mamba projection");
    in_.Forward(ctx, x_TH, mine_TGS.View({tokens, groups_ * packed[2]}), &saved->in);
    TokensToShare(ctx, mine_TGS, saved->packed_TGS);
  }
  saved->y_TGRP = ctx.saved->Allocate(dtype_, ShareShape(ctx, {tokens, groups_, heads_, channels_}),
                                      "mamba output");
  {
    Arena::Scope of_convolution(ctx.scratch);
    const Tensor conv_TGK = Convolve(ctx, saved->packed_TGS);
    Recur(ctx, Inputs(ctx, conv_TGK, saved->packed_TGS), saved->y_TGRP);
  }
  if (norm_all_groups_) {
    saved->squares_T =
        ctx.saved->Allocate(DType::kFloat32, {saved->y_TGRP.dim(0)}, "mamba norm sums");
    ops::GatedNormSums(ctx.stream, norm_, NormInputs(ctx, *saved), saved->squares_T);
    SumOverRanks(ctx, saved->squares_T);
  }
  const Tensor normed_TGI = ctx.scratch->Allocate(dtype_, by_groups, "mamba norm output");
  Normalize(ctx, *saved, normed_TGI);
  out_.Forward(ctx, normed_TGI.View({tokens, groups_ * inner()}), y_TH, &saved->out);
}

void MambaMixer::Normalize(const LayerContext& ctx, const Saved& saved,
                           const Tensor& normed_TGI) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor share_TGI = ShareMemory(ctx, normed_TGI, "mamba norm output");
  ops::GatedNormForward(ctx.stream, NormOf(saved), NormInputs(ctx, saved), share_TGI);
  ShareToTokens(ctx, share_TGI, normed_TGI);
}

void MambaMixer::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                          Saved* saved) {
  const TraceSpan span(ctx.stream, "mamba");
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape by_groups = {tokens, groups_, inner()}, flat = {tokens, groups_ * inner()};
  const Tensor normed_TGI = ctx.kept()->Allocate(dtype_, by_groups, "mamba norm output");
  Normalize(ctx, *saved, normed_TGI);
  saved->out.x_TI = normed_TGI.View(flat);
  const Tensor dnormed_TGI = ctx.scratch->Allocate(dtype_, by_groups, "mamba gradient");
  out_.BackwardInput(ctx, dy_TH, dnormed_TGI.View(flat), &saved->out);

  const Tensor dpacked_TGS =
      ctx.kept()->Allocate(dtype_, {tokens, groups_, saved->packed_TGS.dim(2)}, "mamba gradient");
  {
    Arena::Scope of_share(ctx.scratch);
    const Tensor dscan_TGI = ShareMemory(ctx, dnormed_TGI, "mamba gradient");
    TokensToShare(ctx, dnormed_TGI, dscan_TGI);
    const Tensor dshare_TGS = ShareMemory(ctx, dpacked_TGS, "mamba gradient");
    BackwardShare(ctx, dscan_TGI, dshare_TGS, *saved);
    ShareToTokens(ctx, dshare_TGS, dpacked_TGS);
  }
  const AsyncCall reducing = in_.BackwardInput(
      ctx, dpacked_TGS.View({tokens, groups_ * dpacked_TGS.dim(2)}), dx_TH, &saved->in);
  if (!ctx.defers()) BackwardWeight(ctx, saved);
  reducing.Wait();
}

void MambaMixer::BackwardNorm(const LayerContext& ctx, const Tensor& dnormed_TGI,
                              const Tensor& dpacked_TGS, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  ops::GatedNorm norm = NormOf(saved);
  const ops::GatedNormInputs in = NormInputs(ctx, saved);
  if (norm_all_groups_) {
    norm.products_T =
        ctx.scratch->Allocate(DType::kFloat32, saved.squares_T.shape(), "mamba norm sums");
    ops::GatedNormGradientSums(ctx.stream, norm, in, dnormed_TGI, norm.products_T);
    SumOverRanks(ctx, norm.products_T);
  }
  ops::GatedNormBackward(
      ctx.stream, norm, in, dnormed_TGI,
      {dnormed_TGI, Gates(dpacked_TGS), ShareOf(ctx, Gains(GradientOf(ctx, norm_weight_)))});
}

void MambaMixer::BackwardShare(const LayerContext& ctx, const Tensor& dnormed_TGI,
                               const Tensor& dpacked_TGS, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const auto of = [&](const Parameter& parameter) {
    return ShareOf(ctx, GradientOf(ctx, parameter));
  };
  BackwardNorm(ctx, dnormed_TGI, dpacked_TGS, saved);
  const Tensor dconv_TGK = ctx.scratch->Allocate(
      dtype_, {dpacked_TGS.dim(0), dpacked_TGS.dim(1), convolved()}, "mamba gradient");
  {
    Arena::Scope of_scan(ctx.scratch);
    const ops::StateSpaceInputs in = Inputs(ctx, Convolve(ctx, saved.packed_TGS), saved.packed_TGS);
    const auto allocate = [&](const Shape& shape) {
      return ctx.scratch->Allocate(DType::kFloat32, shape, "mamba states");
    };
    const ops::StateSpaceScratch scratch = {allocate(ops::StateSpaceStates(in)),
                                            allocate(ops::StateSpaceStates(in)),
                                            allocate(ops::StateSpaceSums(in))};
    ops::StateSpaceInputs gradients = Inputs(ctx, dconv_TGK, dpacked_TGS);
    gradients.step_bias_H = of(step_bias_);
    gradients.a_log_H = of(a_log_);
    gradients.skip_H = of(skip_);
    ops::StateSpaceBackward(ctx.stream, ctx.batch->cu_seqlens, in,
                            dnormed_TGI.View(saved.y_TGRP.shape()), scratch, gradients);
  }
  ops::CausalConvBackward(ctx.stream, ctx.batch->cu_seqlens, ConvInputs(ctx, saved.packed_TGS),
                          dconv_TGK, {ConvInput(dpacked_TGS), of(conv_weight_), of(conv_bias_)});
}

void MambaMixer::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  out_.BackwardWeight(ctx, saved->out);
  in_.BackwardWeight(ctx, saved->in);
}

void MambaMixer::AppendParameters(std::vector<Parameter*>* out) {
  in_.AppendParameters(out);
  for (Parameter* parameter :
       {&conv_weight_, &conv_bias_, &step_bias_, &a_log_, &skip_, &norm_weight_})
    out->push_back(parameter);
  out_.AppendParameters(out);
}

}  // namespace megatron
