// The rows of a micro-batch that a rank routes, and their places among all rows.
//
// Every tensor-parallel rank routes other rows of those that its context-parallel rank holds: with
// sequence parallelism those that it holds alone, without it its share.
#ifndef MEGATRON_LAYERS_MOE_ROUTED_ROWS_H_
#define MEGATRON_LAYERS_MOE_ROUTED_ROWS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/layers/layer_context.h"

namespace megatron {

// The rows that this rank routes, among those that the context-parallel rank holds.
struct RoutedRows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
RoutedRows RowsToRoute(const LayerContext& ctx);

// Calls fn(whole, mine, count) for each run of rows that this rank routes: `count` of them, from
// row `mine` of those that it routes on, are rows `whole` and following of the whole micro-batch.
void ForEachRoutedRun(const LayerContext& ctx,
                      absl::FunctionRef<void(int64_t whole, int64_t mine, int64_t count)> fn);

// Writes to `all` what every rank has for the rows that it routes (any dtype that can be summed),
// in the order of the whole micro-batch.
void GatherRouted(const LayerContext& ctx, const Tensor& mine, const Tensor& all);
// The way back: writes `mine`.
void TakeRouted(const LayerContext& ctx, const Tensor& all, const Tensor& mine);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_ROUTED_ROWS_H_
