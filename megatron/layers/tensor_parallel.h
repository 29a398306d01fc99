// The operators between the residual stream and the tensor-parallel region.
//
// On the way in, every rank needs all rows: Gather forward, and Reduce of the gradients' summands
// backward. On the way out, every rank has a summand of all rows: Reduce forward, Gather backward.
// Where the residual stream is replicated, Gather is the identity and Reduce an all-reduce
// (M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053, f and g); under sequence parallelism they
// are an all-gather and a reduce-scatter of rows. The same sums are formed in the same order. With
// one tensor-parallel rank all of them do nothing.
//
// StartGather and StartReduce are the same beside computing (comm/overlap/async_group.h).
#ifndef MEGATRON_LAYERS_TENSOR_PARALLEL_H_
#define MEGATRON_LAYERS_TENSOR_PARALLEL_H_

#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"

namespace megatron {

// Returns the memory for all rows of x: x itself, or memory of ctx.scratch.
inline Tensor AllRowsOf(const LayerContext& ctx, const Tensor& x_TH) {
  if (!ctx.sequence_parallel) return x_TH;
  return ctx.scratch->Allocate(x_TH.dtype(), {x_TH.dim(0) * ctx.tensor_group.size(), x_TH.dim(1)},
                               "gathered rows");
}

// Returns all rows of x: x itself, or a copy gathered in ctx.scratch.
inline Tensor Gather(const LayerContext& ctx, const Tensor& x_TH) {
  const Tensor all_TH = AllRowsOf(ctx, x_TH);
  if (ctx.sequence_parallel) ctx.tensor_group.AllGather(x_TH, all_TH, ctx.stream);
  return all_TH;
}

// Starts to write all rows of x to *all_TH, which becomes AllRowsOf(ctx, x).
inline AsyncCall StartGather(const LayerContext& ctx, const Tensor& x_TH, Tensor* all_TH) {
  *all_TH = AllRowsOf(ctx, x_TH);
  if (!ctx.sequence_parallel) return AsyncCall();
  return StartAsync(ctx.tensor_group, ctx.stream, TimeCategory::kTensorParallel,
                    [x_TH, all = *all_TH](const ProcessGroup& group, const Stream& stream) {
                      group.AllGather(x_TH, all, stream);
                    });
}

// Returns the memory for this rank's summand of all rows, whose sum is to be written to y: y
// itself, or memory of ctx.scratch.
inline Tensor SummandOf(const LayerContext& ctx, const Tensor& y_TH) {
  if (!ctx.sequence_parallel) return y_TH;
  return ctx.scratch->Allocate(y_TH.dtype(), {y_TH.dim(0) * ctx.tensor_group.size(), y_TH.dim(1)},
                               "summand of rows");
}

// Writes to y the sum of all ranks' summands, which lie where SummandOf(ctx, y) said.
inline void Reduce(const LayerContext& ctx, const Tensor& summand_TH, const Tensor& y_TH) {
  if (ctx.sequence_parallel) {
    ctx.tensor_group.ReduceScatter(summand_TH, y_TH, ctx.stream);
  } else if (ctx.tensor_group.size() > 1) {
    ctx.tensor_group.AllReduce(y_TH, ReduceOp::kSum, ctx.stream);
  }
}

// Starts to do what Reduce does. On one rank it is done, without taking memory for a call.
inline AsyncCall StartReduce(const LayerContext& ctx, const Tensor& summand_TH,
                             const Tensor& y_TH) {
  if (ctx.tensor_group.size() == 1) {
    if (ctx.sequence_parallel) Reduce(ctx, summand_TH, y_TH);
    return AsyncCall();
  }
  return StartAsync(ctx.tensor_group, ctx.stream, TimeCategory::kTensorParallel,
                    [summand_TH, y_TH, scatters = ctx.sequence_parallel](const ProcessGroup& group,
                                                                         const Stream& stream) {
                      if (scatters) {
                        group.ReduceScatter(summand_TH, y_TH, stream);
                      } else {
                        group.AllReduce(y_TH, ReduceOp::kSum, stream);
                      }
                    });
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TENSOR_PARALLEL_H_
