#include "megatron/layers/context_heads.h"

#include "glog/logging.h"
#include "megatron/layers/context_attention.h"

namespace megatron {

Shape ShareShape(const LayerContext& ctx, const Shape& mine) {
  const int64_t ranks = ctx.context_group.size();
  CHECK_EQ(mine[1] % ranks, 0) << "groups, over " << ranks << " context-parallel ranks";
  Shape share = mine;
  share[0] *= ranks;
  share[1] /= ranks;
  return share;
}

Tensor ShareMemory(const LayerContext& ctx, const Tensor& mine, const char* name) {
  if (ctx.context_group.size() == 1) return mine;
  return ctx.scratch->Allocate(mine.dtype(), ShareShape(ctx, mine.shape()), name);
}

Tensor OwnMemory(const LayerContext& ctx, const Tensor& share, const Shape& mine,
                 const char* name) {
  if (ctx.context_group.size() == 1) return share;
  return ctx.scratch->Allocate(share.dtype(), mine, name);
}

void TokensToShare(const LayerContext& ctx, const Tensor& mine, const Tensor& share) {
  if (ctx.context_group.size() > 1) ExchangeAllToHeads(ctx, mine, share);
}

void ShareToTokens(const LayerContext& ctx, const Tensor& share, const Tensor& mine) {
  if (ctx.context_group.size() > 1) ExchangeAllToTokens(ctx, mine, share);
}

Tensor ShareOf(const LayerContext& ctx, const Tensor& x) {
  const int64_t ranks = ctx.context_group.size(), count = x.dim(0) / ranks;
  return x.Slice(0, ctx.context_group.rank() * count, (ctx.context_group.rank() + 1) * count);
}

}  // namespace megatron
