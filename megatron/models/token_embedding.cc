#include "megatron/models/token_embedding.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

TokenEmbedding::TokenEmbedding(const ModelOptions& options, VocabParallelEmbedding* words)
    : dropout_(options.transformer.hidden_dropout),
      scale_(options.embedding_scale),
      output_scale_(options.embedding_output_scale),
      words_(words) {
  CHECK(scale_ == 1 || (!options.learned_positions && options.num_token_types == 0));
  if (options.learned_positions) {
    positions_ = MakeTable(options, "embedding.position_embeddings.weight", options.max_positions);
  }
  if (options.num_token_types > 0) {
    types_ = MakeTable(options, "embedding.tokentype_embeddings.weight", options.num_token_types);
  }
  if (options.transformer.post_norm) {
    norm_ = std::make_unique<NormLayer>(NormOptions{
        options.transformer.norm, "embedding.layernorm.weight", "embedding.layernorm.bias",
        options.transformer.hidden_size,
        /*partial_over_tensor=*/options.transformer.sequence_parallel, options.transformer.grid});
  }
}

Parameter TokenEmbedding::MakeTable(const ModelOptions& options, const char* name,
                                    int64_t rows) const {
  // Under sequence parallelism each rank looks up its own rows of the residual stream.
  const AxisSet partial =
      options.transformer.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{};
  Parameter table;
  table.name = name;
  const Shape shape{rows, options.transformer.hidden_size};
  table.sharding = options.transformer.grid.is_grid()
                       ? SplitOverColumns(shape, 1, options.transformer.grid)
                       : Replicated(shape, partial);
  table.initializer = Initializer::Normal(options.embedding_init_std);
  return table;
}

void TokenEmbedding::LookUp(const LayerContext& ctx, const Parameter& table, const Tensor& ids_T,
                            const Tensor& y_TH) const {
  if (table.name.empty()) return;
  ops::EmbeddingForward(ctx.stream, ctx.MyRows(ids_T), table.data, 0, /*accumulate=*/true, y_TH);
}

void TokenEmbedding::LookUpBackward(const LayerContext& ctx, const Tensor& ids_T,
                                    const Tensor& dy_TH, Parameter* table) const {
  if (table->name.empty() || table->frozen) return;
  ops::EmbeddingBackward(ctx.stream, ctx.MyRows(ids_T), dy_TH, 0, table->grad);
}

void TokenEmbedding::Forward(const LayerContext& ctx, const Tensor& y_TH, Saved* saved,
                             DropoutSite site) const {
  const TraceSpan span(ctx.stream, "embedding");
  const Tensor sum_TH =
      norm_ == nullptr ? y_TH : ctx.saved->Allocate(y_TH.dtype(), y_TH.shape(), "embedding");
  {
    const WeightsInUse words(ctx.blocks, words_->weight().block, rest_block_);
    words_->Forward(ctx, ctx.batch->tokens_T, sum_TH);
  }
  if (scale_ != 1) ops::Scale(ctx.stream, scale_, sum_TH);
  {
    const WeightsInUse rest(RestBlocks(ctx), rest_block_);
    LookUp(ctx, positions_, ctx.batch->position_T, sum_TH);
    LookUp(ctx, types_, ctx.batch->token_type_T, sum_TH);
    if (norm_ != nullptr) norm_->Forward(ctx, sum_TH, y_TH, &saved->norm);
  }
  if (output_scale_ != 1) ops::Scale(ctx.stream, output_scale_, y_TH);
  const ops::Dropout dropout = DropoutAt(ctx, dropout_, 0, site);
  if (dropout.probability > 0)
    ops::BiasDropoutAdd(ctx.stream, dropout, y_TH, Tensor(), Tensor(), y_TH);
}

void TokenEmbedding::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Saved& saved,
                              DropoutSite site, bool last) {
  const TraceSpan span(ctx.stream, "embedding");
  const ops::Dropout dropout = DropoutAt(ctx, dropout_, 0, site);
  if (dropout.probability > 0) ops::DropoutBackward(ctx.stream, dropout, dy_TH, dy_TH, Tensor());
  if (output_scale_ != 1) ops::Scale(ctx.stream, output_scale_, dy_TH);
  if (norm_ != nullptr) {
    const WeightsInUse weights(ctx.blocks, rest_block_);
    const GradientsInUse gradients(ctx.blocks, rest_block_, /*last=*/false);
    norm_->Backward(ctx, dy_TH, Tensor(), dy_TH, saved.norm);
  }
  if (scale_ != 1) ops::Scale(ctx.stream, scale_, dy_TH);
  {
    const GradientsInUse words(ctx.blocks, words_->weight().block, last);
    words_->Backward(ctx, ctx.batch->tokens_T, dy_TH);
  }
  const GradientsInUse rest(RestBlocks(ctx), rest_block_, last);
  LookUpBackward(ctx, ctx.batch->position_T, dy_TH, &positions_);
  LookUpBackward(ctx, ctx.batch->token_type_T, dy_TH, &types_);
}

void TokenEmbedding::AppendParameters(std::vector<Parameter*>* out) {
  AppendBlock({&words_->weight()}, out);
  std::vector<Parameter*> rest;
  for (Parameter* table : {&positions_, &types_}) {
    if (!table->name.empty()) rest.push_back(table);
  }
  if (norm_ != nullptr) norm_->AppendParameters(&rest);
  parameters_.assign(rest.begin(), rest.end());
  parameters_.push_back(&words_->weight());
  if (rest.empty()) return;
  rest_block_ = NextBlock(*out);
  AppendBlock(rest, out);
}

bool TokenEmbedding::IsTrained() const { return AnyIsTrained(parameters_); }

}  // namespace megatron
