#include "megatron/layers/vocab_parallel_embedding.h"

#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/embedding.h"

namespace megatron {

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, int64_t padded_vocab_size,
                                               int64_t hidden_size, float init_std,
                                               const ProcessGroup& tensor_group,
                                               const TensorGrid& grid) {
  const Shape shape{padded_vocab_size, hidden_size};
  weight_.name = name;
  weight_.sharding = grid.is_grid()
                         ? SplitWordTable(shape, grid)
                         : SplitOverTensor(shape, 0, tensor_group.size(), tensor_group.rank());
  weight_.initializer = Initializer::Normal(init_std);
}

Tensor VocabParallelEmbedding::TokensToLookUp(const LayerContext& ctx,
                                              const Tensor& tokens_T) const {
  if (!ctx.is_grid()) return tokens_T;
  const Tensor all_T = ctx.scratch->Allocate(
      tokens_T.dtype(), {tokens_T.dim(0) * ctx.grid.words().size()}, "gathered tokens");
  ctx.grid.words().AllGather(tokens_T, all_T, ctx.stream);
  return all_T;
}

void VocabParallelEmbedding::Forward(const LayerContext& ctx, const Tensor& tokens_T,
                                     const Tensor& y_TH) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor all_T = TokensToLookUp(ctx, tokens_T);
  const Tensor summand_TH =
      ctx.is_grid()
          ? ctx.scratch->Allocate(y_TH.dtype(), {all_T.dim(0), y_TH.dim(1)}, "summand of rows")
          : SummandOf(ctx, y_TH);
  ops::EmbeddingForward(ctx.stream, all_T, weight_.data, first_row(), /*accumulate=*/false,
                        summand_TH);
  if (ctx.is_grid()) return ctx.grid.words().ReduceScatter(summand_TH, y_TH, ctx.stream);
  Reduce(ctx, summand_TH, y_TH);
}

void VocabParallelEmbedding::Backward(const LayerContext& ctx, const Tensor& tokens_T,
                                      const Tensor& dy_TH) {
  if (weight_.frozen) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor all_T = TokensToLookUp(ctx, tokens_T);
  Tensor all_TH = dy_TH;
  if (ctx.is_grid()) {
    all_TH = ctx.scratch->Allocate(dy_TH.dtype(), {all_T.dim(0), dy_TH.dim(1)}, "gathered rows");
    ctx.grid.words().AllGather(dy_TH, all_TH, ctx.stream);
  } else {
    all_TH = Gather(ctx, dy_TH);
  }
  ops::EmbeddingBackward(ctx.stream, all_T, all_TH, first_row(), weight_.grad);
}

}  // namespace megatron
