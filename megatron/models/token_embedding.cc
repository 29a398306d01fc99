#include "megatron/models/token_embedding.h"

#include "megatron/ops/embedding.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

TokenEmbedding::TokenEmbedding(const GptOptions& options, VocabParallelEmbedding* words)
    : dropout_(options.transformer.hidden_dropout), words_(words) {
  if (options.learned_positions) {
    positions_ = MakeTable(options, "embedding.position_embeddings.weight", options.max_positions);
  }
}

Parameter TokenEmbedding::MakeTable(const GptOptions& options, const char* name,
                                    int64_t rows) const {
  // Under sequence parallelism each rank looks up its own rows of the residual stream.
  const AxisSet partial =
      options.transformer.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{};
  Parameter table;
  table.name = name;
  table.sharding = Replicated({rows, options.transformer.hidden_size}, partial);
  table.initializer = Initializer::Normal(options.embedding_init_std);
  return table;
}

void TokenEmbedding::Forward(const LayerContext& ctx, const Tensor& y_TH) const {
  const bool has_positions = !positions_.name.empty();
  {
    const WeightsInUse words(ctx.blocks, words_->weight().block,
                             has_positions ? positions_.block : WeightBlocks::kNone);
    words_->Forward(ctx, ctx.batch->tokens_T, y_TH);
  }
  if (has_positions) {
    const WeightsInUse positions(ctx.blocks, positions_.block);
    ops::EmbeddingForward(ctx.stream, ctx.MyRows(ctx.batch->position_T), positions_.data, 0,
                          /*accumulate=*/true, y_TH);
  }
  const ops::Dropout dropout = DropoutOf(ctx);
  if (dropout.probability > 0)
    ops::BiasDropoutAdd(ctx.stream, dropout, y_TH, Tensor(), Tensor(), y_TH);
}

void TokenEmbedding::Backward(const LayerContext& ctx, const Tensor& dy_TH) {
  const ops::Dropout dropout = DropoutOf(ctx);
  if (dropout.probability > 0) ops::DropoutBackward(ctx.stream, dropout, dy_TH, dy_TH, Tensor());
  {
    const GradientsInUse words(ctx.blocks, words_->weight().block);
    words_->Backward(ctx, ctx.batch->tokens_T, dy_TH);
  }
  if (!positions_.name.empty()) {
    const GradientsInUse positions(ctx.blocks, positions_.block);
    ops::EmbeddingBackward(ctx.stream, ctx.MyRows(ctx.batch->position_T), dy_TH, 0,
                           positions_.grad);
  }
}

void TokenEmbedding::AppendParameters(std::vector<Parameter*>* out) {
  AppendBlock({&words_->weight()}, out);
  if (!positions_.name.empty()) AppendBlock({&positions_}, out);
}

}  // namespace megatron
