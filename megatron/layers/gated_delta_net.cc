#include "megatron/layers/gated_delta_net.h"

#include <cmath>

#include "glog/logging.h"
#include "megatron/layers/context_heads.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/parameter_gradient.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

LinearOptions InLinear(const TransformerOptions& options, const std::string& name) {
  const DeltaOptions& delta = options.delta;
  const int64_t heads = delta.num_value_heads / delta.num_key_heads;
  const int64_t values = heads * delta.value_head_dim;
  LinearOptions linear;
  linear.name = name + ".in_proj";
  linear.input_size = options.hidden_size;
  linear.matrix.parts = {delta.key_head_dim, delta.key_head_dim, values, values, heads, heads};
  linear.output_shape = {delta.num_key_heads, 2 * delta.key_head_dim + 2 * values + 2 * heads};
  linear.bias = false;
  linear.init_std = options.init_std;
  linear.overlap = options.tp_comm_overlap;
  return linear;
}

LinearOptions OutLinear(const TransformerOptions& options, const std::string& name) {
  LinearOptions linear;
  linear.name = name + ".out_proj";
  linear.input_size = options.delta.num_value_heads * options.delta.value_head_dim;
  linear.output_shape = {options.hidden_size};
  linear.bias = false;
  linear.sequence_parallel = options.sequence_parallel;
  linear.init_std = options.output_init_std;
  linear.overlap = options.tp_comm_overlap;
  return linear;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const TransformerOptions& options, const std::string& name,
                             int64_t layer, const ProcessGroup& tensor_group)
    : layer_(layer),
      groups_(options.delta.num_key_heads / tensor_group.size()),
      heads_(options.delta.num_value_heads / options.delta.num_key_heads),
      key_(options.delta.key_head_dim),
      value_(options.delta.value_head_dim),
      norm_{options.norm.epsilon, /*norm_before_gate=*/true},
      dtype_(options.dtype),
      in_(InLinear(options, name), tensor_group),
      out_(OutLinear(options, name), tensor_group) {
  const DeltaOptions& delta = options.delta;
  CHECK(!options.grid.is_grid() && !options.float8.enabled) << name;
  CHECK_EQ(delta.num_value_heads % delta.num_key_heads, 0) << name;
  const auto cut = [&](const Shape& shape) {
    return SplitOverTensor(shape, 0, tensor_group.size(), tensor_group.rank());
  };
  conv_weight_.name = name + ".conv1d.weight";
  conv_weight_.sharding = cut({delta.num_key_heads, convolved(), delta.conv_taps});
  conv_weight_.initializer =
      Initializer::Uniform(1 / std::sqrt(static_cast<float>(delta.conv_taps)));
  decay_bias_.name = name + ".dt_bias";
  decay_bias_.sharding = cut({delta.num_value_heads});
  decay_bias_.initializer = Initializer::Ones();
  a_log_.name = name + ".A_log";
  a_log_.sharding = cut({delta.num_value_heads});
  a_log_.initializer = Initializer::LogUniform(1, 16);
  norm_weight_.name = name + ".out_norm.weight";
  // Each rank normalizes its own heads.
  norm_weight_.sharding = Replicated({value_}, {Axis::kTensor});
  norm_weight_.initializer = Initializer::Ones();
  for (Parameter* parameter : {&decay_bias_, &a_log_, &norm_weight_})
    parameter->weight_decay = false;
}

StateShapes GatedDeltaNet::ShapesOf(const TransformerOptions& options, int ranks) {
  const DeltaOptions& delta = options.delta;
  const int64_t groups = delta.num_key_heads / ranks, heads = delta.num_value_heads / ranks;
  const int64_t convolved = 2 * delta.key_head_dim + heads / groups * delta.value_head_dim;
  return {{heads, delta.key_head_dim, delta.value_head_dim},
          {delta.conv_taps - 1, groups, convolved}};
}

ops::CausalConvInputs GatedDeltaNet::ConvInputs(const LayerContext& ctx,
                                                const Tensor& packed_TGS) const {
  return {ConvInput(packed_TGS), ShareOf(ctx, conv_weight_.data), Tensor()};
}

ops::GatedDeltaInputs GatedDeltaNet::Inputs(const LayerContext& ctx, const Tensor& conv_TGC,
                                            const Tensor& packed_TGS) const {
  return {conv_TGC.Slice(2, 0, key_),
          conv_TGC.Slice(2, key_, 2 * key_),
          conv_TGC.Slice(2, 2 * key_, convolved()).SplitDim(2, value_),
          Betas(packed_TGS),
          Decays(packed_TGS),
          ShareOf(ctx, decay_bias_.data),
          ShareOf(ctx, a_log_.data)};
}

ops::GatedNormInputs GatedDeltaNet::NormInputs(const Saved& saved) const {
  return {saved.y_TGRE, Gates(saved.packed_TGS).SplitDim(2, value_),
          norm_weight_.data.View({1, value_})};
}

Tensor GatedDeltaNet::Convolve(const LayerContext& ctx, const Tensor& packed_TGS) const {
  const Tensor conv_TGC = ctx.scratch->Allocate(
      dtype_, {packed_TGS.dim(0), packed_TGS.dim(1), convolved()}, "delta net convolution");
  const ops::CausalConvInputs in = ConvInputs(ctx, packed_TGS);
  if (ctx.cached == nullptr) {
    ops::CausalConvForward(ctx.stream, ctx.batch->cu_seqlens, in, conv_TGC);
  } else {
    ops::CausalConvContinue(ctx.stream, ctx.batch->cu_seqlens, ctx.batch->position_T, in,
                            ctx.cached->states->Recent(layer_), conv_TGC);
  }
  return conv_TGC;
}

ops::GatedDeltaScratch GatedDeltaNet::Scratch(const LayerContext& ctx,
                                              const ops::GatedDeltaInputs& in) const {
  const auto allocate = [&](const Shape& shape) {
    return ctx.scratch->Allocate(DType::kFloat32, shape, "delta net states");
  };
  ops::GatedDeltaScratch scratch;
  scratch.states = allocate(ops::GatedDeltaStates(in));
  scratch.keys_THK = allocate(ops::GatedDeltaKeys(in));
  scratch.values_THE = allocate(ops::GatedDeltaValues(in));
  return scratch;
}

void GatedDeltaNet::Recur(const LayerContext& ctx, const ops::GatedDeltaInputs& in,
                          const Tensor& y_TGRE) const {
  if (ctx.cached != nullptr) {
    return ops::GatedDeltaContinue(ctx.stream, ctx.batch->cu_seqlens, ctx.batch->position_T, in,
                                   ctx.cached->states->States(layer_), y_TGRE);
  }
  Arena::Scope scope(ctx.scratch);
  ops::GatedDeltaForward(ctx.stream, ctx.batch->cu_seqlens, in, Scratch(ctx, in), y_TGRE);
}

void GatedDeltaNet::Normalize(const LayerContext& ctx, const Saved& saved,
                              const Tensor& normed_TGRE) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor share_TGRE = ShareMemory(ctx, normed_TGRE, "delta net norm output");
  ops::GatedNormForward(ctx.stream, norm_, NormInputs(saved), share_TGRE);
  ShareToTokens(ctx, share_TGRE, normed_TGRE);
}

void GatedDeltaNet::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                            Saved* saved) const {
  const TraceSpan span(ctx.stream, "delta net");
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape mine = {tokens, groups_, packed()}, by_heads = {tokens, groups_, heads_, value_};
  saved->packed_TGS = ctx.saved->Allocate(dtype_, ShareShape(ctx, mine), "delta net projection");
  {
    Arena::Scope of_projection(ctx.scratch);
    const Tensor mine_TGS = OwnMemory(ctx, saved->packed_TGS, mine, "delta net projection");
    in_.Forward(ctx, x_TH, mine_TGS.View({tokens, groups_ * packed()}), &saved->in);
    TokensToShare(ctx, mine_TGS, saved->packed_TGS);
  }
  saved->y_TGRE = ctx.saved->Allocate(dtype_, ShareShape(ctx, by_heads), "delta net output");
  {
    Arena::Scope of_convolution(ctx.scratch);
    const Tensor conv_TGC = Convolve(ctx, saved->packed_TGS);
    Recur(ctx, Inputs(ctx, conv_TGC, saved->packed_TGS), saved->y_TGRE);
  }
  const Tensor normed_TGRE = ctx.scratch->Allocate(dtype_, by_heads, "delta net norm output");
  Normalize(ctx, *saved, normed_TGRE);
  out_.Forward(ctx, normed_TGRE.View({tokens, groups_ * values()}), y_TH, &saved->out);
}

void GatedDeltaNet::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                             Saved* saved) {
  const TraceSpan span(ctx.stream, "delta net");
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape by_heads = {tokens, groups_, heads_, value_}, flat = {tokens, groups_ * values()};
  const Tensor normed_TGRE = ctx.kept()->Allocate(dtype_, by_heads, "delta net norm output");
  Normalize(ctx, *saved, normed_TGRE);
  saved->out.x_TI = normed_TGRE.View(flat);
  const Tensor dnormed_TGRE = ctx.scratch->Allocate(dtype_, by_heads, "delta net gradient");
  out_.BackwardInput(ctx, dy_TH, dnormed_TGRE.View(flat), &saved->out);

  const Tensor dpacked_TGS =
      ctx.kept()->Allocate(dtype_, {tokens, groups_, packed()}, "delta net gradient");
  {
    Arena::Scope of_share(ctx.scratch);
    const Tensor dshare_TGRE = ShareMemory(ctx, dnormed_TGRE, "delta net gradient");
    TokensToShare(ctx, dnormed_TGRE, dshare_TGRE);
    const Tensor dshare_TGS = ShareMemory(ctx, dpacked_TGS, "delta net gradient");
    BackwardShare(ctx, dshare_TGRE, dshare_TGS, *saved);
    ShareToTokens(ctx, dshare_TGS, dpacked_TGS);
  }
  const AsyncCall reducing =
      in_.BackwardInput(ctx, dpacked_TGS.View({tokens, groups_ * packed()}), dx_TH, &saved->in);
  if (!ctx.defers()) BackwardWeight(ctx, saved);
  reducing.Wait();
}

void GatedDeltaNet::BackwardShare(const LayerContext& ctx, const Tensor& dnormed_TGRE,
                                  const Tensor& dpacked_TGS, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const auto of = [&](const Parameter& parameter) {
    return ShareOf(ctx, GradientOf(ctx, parameter));
  };
  const Tensor dnorm_1E = GradientOf(ctx, norm_weight_).View({1, value_});
  ops::GatedNormBackward(ctx.stream, norm_, NormInputs(saved), dnormed_TGRE,
                         {dnormed_TGRE, Gates(dpacked_TGS).SplitDim(2, value_), dnorm_1E});
  const Tensor dconv_TGC = ctx.scratch->Allocate(
      dtype_, {dpacked_TGS.dim(0), dpacked_TGS.dim(1), convolved()}, "delta net gradient");
  {
    Arena::Scope of_states(ctx.scratch);
    const ops::GatedDeltaInputs in = Inputs(ctx, Convolve(ctx, saved.packed_TGS), saved.packed_TGS);
    const auto allocate = [&](const Shape& shape) {
      return ctx.scratch->Allocate(DType::kFloat32, shape, "delta net states");
    };
    ops::GatedDeltaScratch scratch = Scratch(ctx, in);
    scratch.state_gradients = allocate(ops::GatedDeltaStates(in));
    scratch.value_gradients_THE = allocate(ops::GatedDeltaValues(in));
    scratch.token_sums = allocate(ops::GatedDeltaTokenSums(in));
    ops::GatedDeltaInputs gradients = Inputs(ctx, dconv_TGC, dpacked_TGS);
    gradients.bias_H = of(decay_bias_);
    gradients.a_log_H = of(a_log_);
    ops::GatedDeltaBackward(ctx.stream, ctx.batch->cu_seqlens, in, dnormed_TGRE, scratch,
                            gradients);
  }
  ops::CausalConvBackward(ctx.stream, ctx.batch->cu_seqlens, ConvInputs(ctx, saved.packed_TGS),
                          dconv_TGC, {ConvInput(dpacked_TGS), of(conv_weight_), Tensor()});
}

void GatedDeltaNet::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  out_.BackwardWeight(ctx, saved->out);
  in_.BackwardWeight(ctx, saved->in);
}

void GatedDeltaNet::AppendParameters(std::vector<Parameter*>* out) {
  in_.AppendParameters(out);
  for (Parameter* parameter : {&conv_weight_, &decay_bias_, &a_log_, &norm_weight_})
    out->push_back(parameter);
  out_.AppendParameters(out);
}

}  // namespace megatron
