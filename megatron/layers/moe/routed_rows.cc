#include "megatron/layers/moe/routed_rows.h"

#include <algorithm>

#include "megatron/layers/context_slice.h"
#include "megatron/ops/elementwise.h"

namespace megatron {

RoutedRows RowsToRoute(const LayerContext& ctx) {
  const int64_t tokens = ctx.batch->num_tokens();
  const int64_t rank = ctx.tensor_group.rank(), size = ctx.tensor_group.size();
  return {tokens * rank / size, tokens * (rank + 1) / size};
}

void ForEachRoutedRun(const LayerContext& ctx,
                      absl::FunctionRef<void(int64_t, int64_t, int64_t)> fn) {
  const RoutedRows mine = RowsToRoute(ctx);
  const int size = ctx.context_group.size();
  if (size == 1) return fn(mine.begin, 0, mine.count());
  ForEachContextChunk(size, ctx.context_group.rank(), ctx.batch->num_tokens() * size,
                      ctx.batch->context.sample_length, [&](const ContextChunk& chunk) {
                        const int64_t begin = std::max(chunk.local_begin, mine.begin),
                                      end = std::min(chunk.local_begin + chunk.length, mine.end);
                        if (begin < end)
                          fn(chunk.whole_begin + begin - chunk.local_begin, begin - mine.begin,
                             end - begin);
                      });
}

// Sums in which all terms but one are zero are exact.
void GatherRouted(const LayerContext& ctx, const Tensor& mine, const Tensor& all) {
  if (ctx.tensor_group.size() * ctx.context_group.size() > 1) ops::Zero(ctx.stream, all);
  ForEachRoutedRun(ctx, [&](int64_t to, int64_t from, int64_t count) {
    ops::Copy(ctx.stream, mine.Slice(0, from, from + count), all.Slice(0, to, to + count));
  });
  ctx.tensor_group.AllReduce(all, ReduceOp::kSum, ctx.stream);
  ctx.context_group.AllReduce(all, ReduceOp::kSum, ctx.stream);
}

void TakeRouted(const LayerContext& ctx, const Tensor& all, const Tensor& mine) {
  ForEachRoutedRun(ctx, [&](int64_t from, int64_t to, int64_t count) {
    ops::Copy(ctx.stream, all.Slice(0, from, from + count), mine.Slice(0, to, to + count));
  });
}

}  // namespace megatron
