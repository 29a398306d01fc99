#include "megatron/models/token_embedding.h"

#include "megatron/ops/embedding.h"

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
  words_->Forward(ctx, ctx.batch->tokens_T, y_TH);
  if (!positions_.name.empty()) {
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
  words_->Backward(ctx, ctx.batch->tokens_T, dy_TH);
  if (!positions_.name.empty()) {
    ops::EmbeddingBackward(ctx.stream, ctx.MyRows(ctx.batch->position_T), dy_TH, 0,
                           positions_.grad);
  }
}

void TokenEmbedding::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&words_->weight());
  if (!positions_.name.empty()) out->push_back(&positions_);
}

}  // namespace megatron
