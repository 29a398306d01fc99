#include "megatron/layers/mlp.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/activation.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

LinearOptions Fc1(const TransformerOptions& options, const std::string& name,
                  bool input_outlives_forward) {
  const int64_t ffn = options.ffn_hidden_size;
  LinearOptions linear;
  linear.name = name + ".linear_fc1";
  linear.input_size = options.hidden_size;
  linear.output_shape = options.gated ? Shape{2, ffn} : Shape{ffn};
  linear.split_dim = options.gated ? 1 : 0;
  linear.matrix.stacked = options.gated ? 1 : 0;
  linear.bias = options.has_mlp_bias();
  linear.init_std = options.init_std;
  linear.float8 = options.float8;
  linear.grid = options.grid;
  linear.overlap = options.tp_comm_overlap;
  linear.adapter = options.lora.Of("linear_fc1");
  linear.keep_codes = !input_outlives_forward && !options.post_norm && !options.recompute.norm &&
                      !options.recompute.mlp;
  return linear;
}

LinearOptions Fc2(const TransformerOptions& options, const std::string& name) {
  LinearOptions linear;
  linear.name = name + ".linear_fc2";
  linear.input_size = options.ffn_hidden_size;
  linear.output_shape = {options.hidden_size};
  linear.bias = options.has_mlp_bias();
  linear.sequence_parallel = options.sequence_parallel;
  linear.init_std = options.output_init_std;
  linear.float8 = options.float8;
  linear.grid = options.grid;
  linear.overlap = options.tp_comm_overlap;
  linear.adapter = options.lora.Of("linear_fc2");
  linear.keep_codes = !options.recompute.mlp;
  return linear;
}

}  // namespace

Mlp::Mlp(const TransformerOptions& options, const std::string& name,
         const ProcessGroup& tensor_group, bool input_outlives_forward)
    : gated_(options.gated),
      recompute_(options.recompute.mlp),
      chunk_(options.recompute.mlp_chunk_tokens),
      activation_(options.activation),
      gate_(options.gate, options.gate_limit, options.gate_offset),
      dtype_(options.dtype),
      fc1_(Fc1(options, name, input_outlives_forward), tensor_group),
      fc2_(Fc2(options, name), tensor_group) {
  // Scales are made of a whole tensor.
  CHECK(chunk_ == 0 || !options.float8.enabled) << name;
}

Tensor Mlp::ForwardToActivation(const LayerContext& ctx, const Tensor& x_TH, Arena* arena,
                                Saved* saved) const {
  const int64_t ranks = ctx.sequence_parallel ? ctx.tensor_group.size() : 1;
  const int64_t tokens = x_TH.dim(0) * ranks, width = fc1_.output_size();
  const LayerContext part = ctx.Of(OffloadModule::kMlp);
  saved->pre_TI = arena->Allocate(dtype_, {tokens, width}, "mlp pre-activation");
  const Tensor activated_TI =
      (fc2_.keeps_codes(ctx) ? ctx.scratch : arena)
          ->Allocate(dtype_, {tokens, gated_ ? width / 2 : width}, "mlp activation");
  if (gated_) {
    fc1_.Forward(part, x_TH, saved->pre_TI, &saved->fc1);
    ops::GateForward(ctx.stream, gate_, saved->pre_TI, activated_TI);
  } else {
    fc1_.ForwardActivation(part, activation_, x_TH, saved->pre_TI, activated_TI, &saved->fc1);
  }
  return activated_TI;
}

void Mlp::ForEachChunk(const LayerContext& ctx, int64_t rows,
                       absl::FunctionRef<void(int64_t, int64_t)> fn) const {
  const int64_t ranks = ctx.sequence_parallel ? ctx.tensor_group.size() : 1;
  const int64_t chunk = std::max<int64_t>(1, chunk_ / ranks);
  for (int64_t begin = 0; begin < rows; begin += chunk) fn(begin, std::min(begin + chunk, rows));
}

void Mlp::ForwardRows(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Arena* arena,
                      Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor activated_TI = ForwardToActivation(ctx, x_TH, arena, saved);
  fc2_.Forward(ctx.Of(OffloadModule::kMlp), activated_TI, y_TH, &saved->fc2);
}

void Mlp::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                  Saved* saved) const {
  const TraceSpan span(ctx.stream, "mlp");
  if (chunk_ == 0) {
    Arena* const arena = recompute_ ? ctx.scratch : ctx.SavedBy(OffloadModule::kMlp);
    return ForwardRows(ctx, x_TH, y_TH, arena, saved);
  }
  ForEachChunk(ctx, x_TH.dim(0), [&](int64_t begin, int64_t end) {
    Saved forgotten;
    ForwardRows(ctx, x_TH.Slice(0, begin, end), y_TH.Slice(0, begin, end), ctx.scratch, &forgotten);
  });
  saved->fc1.x_TI = x_TH;
}

void Mlp::BeginForward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                       Saved* saved) const {
  if (!HasTwoParts(ctx)) return Forward(ctx, x_TH, y_TH, saved);
  const TraceSpan span(ctx.stream, "mlp");
  saved->fc2.x_TI = ForwardToActivation(ctx, x_TH, ctx.SavedBy(OffloadModule::kMlp), saved);
}

void Mlp::EndForward(const LayerContext& ctx, const Tensor& y_TH, Saved* saved) const {
  if (!HasTwoParts(ctx)) return;
  const TraceSpan span(ctx.stream, "mlp");
  const Tensor activated_TI = saved->fc2.x_TI;
  fc2_.Forward(ctx.Of(OffloadModule::kMlp), activated_TI, y_TH, &saved->fc2);
}

void Mlp::BackwardRows(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                       bool again, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  if (again) saved->fc2.x_TI = ForwardToActivation(ctx, saved->fc1.x_TI, ctx.kept(), saved);
  const Tensor dpre_TI = ctx.kept()->Allocate(dtype_, saved->pre_TI.shape(), "mlp gradient");
  if (gated_) {
    const Tensor dactivated_TI =
        ctx.scratch->Allocate(dtype_, {dpre_TI.dim(0), dpre_TI.dim(1) / 2}, "mlp gradient");
    fc2_.BackwardInput(ctx, dy_TH, dactivated_TI, &saved->fc2);
    ops::GateBackward(ctx.stream, gate_, dactivated_TI, saved->pre_TI, dpre_TI);
  } else {
    const Tensor dbias_I =
        ops::ActivationBackwardSumsForFree(ctx.stream) ? fc1_.bias_gradient() : Tensor();
    saved->fc1.bias_is_done = !dbias_I.empty();
    fc2_.BackwardInputActivation(ctx, activation_, dy_TH, saved->pre_TI, dpre_TI, dbias_I,
                                 &saved->fc2);
  }
  const AsyncCall reducing = fc1_.BackwardInput(ctx, dpre_TI, dx_TH, &saved->fc1);
  if (!ctx.defers()) AddWeightGradients(ctx, *saved);
  reducing.Wait();
}

void Mlp::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                   Saved* saved) {
  const TraceSpan span(ctx.stream, "mlp");
  if (chunk_ == 0) return BackwardRows(ctx, dy_TH, dx_TH, recompute_, saved);
  LayerContext at_once = ctx;
  at_once.deferred = nullptr;
  ForEachChunk(ctx, dy_TH.dim(0), [&](int64_t begin, int64_t end) {
    Saved chunk;
    chunk.fc1.x_TI = saved->fc1.x_TI.Slice(0, begin, end);
    BackwardRows(at_once, dy_TH.Slice(0, begin, end), dx_TH.Slice(0, begin, end), /*again=*/true,
                 &chunk);
  });
}

void Mlp::AddWeightGradients(const LayerContext& ctx, const Saved& saved) {
  fc2_.BackwardWeight(ctx, saved.fc2);
  fc1_.BackwardWeight(ctx, saved.fc1);
}

void Mlp::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  if (chunk_ == 0) AddWeightGradients(ctx, *saved);
}

void Mlp::AppendParameters(std::vector<Parameter*>* out) {
  fc1_.AppendParameters(out);
  fc2_.AppendParameters(out);
}

}  // namespace megatron
