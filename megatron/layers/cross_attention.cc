#include "megatron/layers/cross_attention.h"

#include "megatron/layers/attention_options.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The projection from the hidden size to `parts` vectors of each head.
LinearOptions HeadsLinear(const TransformerOptions& options, const std::string& name,
                          int64_t parts) {
  LinearOptions linear;
  linear.name = name;
  linear.input_size = options.hidden_size;
  linear.output_shape = {options.num_attention_heads, parts, options.kv_channels};
  if (parts > 1) linear.matrix.parts.assign(parts, 1);
  linear.bias = options.qkv_bias;
  linear.init_std = options.init_std;
  linear.float8 = options.float8;
  linear.overlap = options.tp_comm_overlap;
  return linear;
}

}  // namespace

CrossAttention::CrossAttention(const TransformerOptions& options, const std::string& name,
                               int64_t layer, const ProcessGroup& tensor_group)
    : heads_(options.num_attention_heads / tensor_group.size()),
      head_size_(options.kv_channels),
      recompute_(options.recompute.core_attention),
      dtype_(options.dtype),
      core_(CrossAttentionCore(options, layer, tensor_group)),
      q_(HeadsLinear(options, name + ".linear_q", 1), tensor_group),
      kv_(HeadsLinear(options, name + ".linear_kv", 2), tensor_group),
      proj_(AttentionOutputLinear(options, name), tensor_group) {}

ops::AttentionInputs CrossAttention::Inputs(const Tensor& q_TND, const Tensor& kv_UN2D) const {
  return {WithGroups(q_TND), kv_UN2D.Select(2, 0), kv_UN2D.Select(2, 1)};
}

void CrossAttention::Attend(const LayerContext& ctx, Arena* arena, Saved* saved) const {
  saved->context_TND = arena->Allocate(dtype_, saved->q_TND.shape(), "attention output");
  core_.Forward(ctx, arena, Inputs(saved->q_TND, saved->kv_UN2D), WithGroups(saved->context_TND),
                &saved->core);
}

void CrossAttention::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                             Saved* saved) const {
  const TraceSpan span(ctx.stream, "cross-attention");
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens(), keys = ctx.batch->encoder.num_tokens();
  Arena* const arena = core_.KeepsInputs(ctx) && !recompute_ ? ctx.scratch : ctx.saved;
  saved->q_TND = arena->Allocate(dtype_, {tokens, heads_, head_size_}, "attention q");
  saved->kv_UN2D = arena->Allocate(dtype_, {keys, heads_, 2, head_size_}, "attention kv");
  q_.Forward(ctx, x_TH, Flat(saved->q_TND), &saved->q);
  kv_.Forward(ctx, ctx.encoder_UH, saved->kv_UN2D.View({keys, heads_ * 2 * head_size_}),
              &saved->kv);
  Attend(ctx, recompute_ ? ctx.scratch : ctx.saved, saved);
  proj_.Forward(ctx, Flat(saved->context_TND), y_TH, &saved->proj);
}

void CrossAttention::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                              Saved* saved) {
  const TraceSpan span(ctx.stream, "cross-attention");
  Arena::Scope scope(ctx.scratch);
  if (recompute_) {
    Attend(ctx, ctx.kept(), saved);
    saved->proj.x_TI = Flat(saved->context_TND);
  }
  const Tensor dcontext_TND =
      ctx.scratch->Allocate(dtype_, saved->context_TND.shape(), "attention gradient");
  proj_.BackwardInput(ctx, dy_TH, Flat(dcontext_TND), &saved->proj);
  const Tensor dq_TND = ctx.kept()->Allocate(dtype_, saved->q_TND.shape(), "attention gradient");
  const Tensor dkv_UN2D =
      ctx.kept()->Allocate(dtype_, saved->kv_UN2D.shape(), "attention gradient");
  core_.Backward(ctx, Inputs(saved->q_TND, saved->kv_UN2D), WithGroups(saved->context_TND),
                 WithGroups(dcontext_TND), Inputs(dq_TND, dkv_UN2D), saved->core);
  const AsyncCall reducing = q_.BackwardInput(ctx, Flat(dq_TND), dx_TH, &saved->q);
  const Tensor dencoder_UH =
      ctx.scratch->Allocate(dtype_, ctx.encoder_gradient_UH.shape(), "encoder gradient");
  const AsyncCall reducing_encoder = kv_.BackwardInput(
      ctx, dkv_UN2D.View({dkv_UN2D.dim(0), heads_ * 2 * head_size_}), dencoder_UH, &saved->kv);
  if (!ctx.defers()) BackwardWeight(ctx, saved);
  reducing.Wait();
  reducing_encoder.Wait();
  ops::Add(ctx.stream, dencoder_UH, ctx.encoder_gradient_UH);
}

void CrossAttention::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  proj_.BackwardWeight(ctx, saved->proj);
  q_.BackwardWeight(ctx, saved->q);
  kv_.BackwardWeight(ctx, saved->kv);
}

void CrossAttention::AppendParameters(std::vector<Parameter*>* out) {
  q_.AppendParameters(out);
  kv_.AppendParameters(out);
  proj_.AppendParameters(out);
}

}  // namespace megatron
