#include "megatron/models/lm_head.h"

#include <algorithm>

#include "megatron/layers/grid_products.h"
#include "megatron/layers/linear_gradients.h"
#include "megatron/layers/tensor_overlap.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/models/t5/span_accuracy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/weighted_sum.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {
namespace {

// Writes to `theirs` the block of the rank in this one's place with row and column swapped.
void SwapBlocks(const LayerContext& ctx, const Tensor& mine, const Tensor& theirs) {
  const int side = ctx.grid.row.size();
  const int row = ctx.grid.column.rank(), column = ctx.grid.row.rank();
  if (row == column) return ops::Copy(ctx.stream, mine, theirs);
  const int peer = row * side + column;
  ctx.grid.square.Exchange({Transfer{peer, mine}}, {Transfer{peer, theirs}}, ctx.stream);
}

}  // namespace

LmHead::LmHead(const ModelOptions& options, const Measures& measures,
               const ProcessGroup& tensor_group, Parameter* words, bool used_later)
    : dtype_(options.transformer.dtype),
      hidden_size_(options.transformer.hidden_size),
      vocab_part_(options.padded_vocab_size / tensor_group.size()),
      words_(words),
      measures_(measures),
      tied_(options.tied_embeddings),
      is_used_later_(used_later || (options.tied_embeddings && words->owner)),
      output_scale_(options.output_scale),
      chunk_(options.logits_chunk),
      overlaps_(options.transformer.tp_comm_overlap),
      softcap_(options.logit_softcap),
      cross_entropy_({tensor_group.rank() * vocab_part_, options.vocab_size}, softcap_) {
  const TransformerOptions& transformer = options.transformer;
  // The names of Megatron's checkpoints.
  const std::string norm =
      transformer.name + (transformer.is_hybrid() ? ".final_norm." : ".final_layernorm.");
  if (!transformer.post_norm && options.mtp_num_layers == 0) {
    norm_ = std::make_unique<NormLayer>(
        NormOptions{transformer.norm, norm + "weight", norm + "bias", hidden_size_,
                    /*partial_over_tensor=*/transformer.sequence_parallel, transformer.grid});
  }
  if (options.masked_lm_transform) {
    transform_ = std::make_unique<MaskedLmTransform>(transformer, options.masked_lm_activation);
  }
  if (options.output_bias) {
    bias_V_.name = "output_layer.bias";
    bias_V_.sharding =
        SplitOverTensor({options.padded_vocab_size}, 0, tensor_group.size(), tensor_group.rank());
    bias_V_.weight_decay = false;
  }
  CHECK(!transformer.grid.is_grid() ||
        (chunk_ == 0 && !options.output_bias && !options.masked_lm_transform));
  CHECK(options.masked_lm_transform || !options.sentence_order_head);
  CHECK(output_scale_ == 1 || transform_ == nullptr);
  if (options.sentence_order_head)
    order_ = std::make_unique<SequenceHead>(transformer, SequenceHeadOptions{"binary_head"});
}

Tensor LmHead::Norm(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const {
  if (norm_ == nullptr) return x_TH;
  const Tensor normed_TH = ctx.saved->Allocate(dtype_, x_TH.shape(), "norm output");
  norm_->Forward(ctx, x_TH, normed_TH, &saved->norm);
  return normed_TH;
}

Tensor LmHead::Transform(const LayerContext& ctx, const Tensor& normed_TH, Saved* saved) const {
  if (transform_ == nullptr) {
    if (output_scale_ == 1) return normed_TH;
    Tensor scaled_TH = normed_TH;  // in place, where it is this head's
    if (norm_ == nullptr) {
      scaled_TH = ctx.saved->Allocate(dtype_, normed_TH.shape(), "scaled norm output");
      ops::Copy(ctx.stream, normed_TH, scaled_TH);
    }
    ops::Scale(ctx.stream, output_scale_, scaled_TH);
    return scaled_TH;
  }
  const Tensor transformed_TH = ctx.saved->Allocate(dtype_, normed_TH.shape(), "norm output");
  transform_->Forward(ctx, normed_TH, transformed_TH, &saved->transform);
  return transformed_TH;
}

void LmHead::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums, Saved* saved,
                     const TokenScores& scores) const {
  const TraceSpan span(ctx.stream, "head");
  Arena::Scope scope(ctx.scratch);
  const bool has_logits = chunk_ == 0 || !ctx.training;
  const WeightsInUse own(OwnBlocks(ctx), own_block_, words_->block);
  const WeightsInUse words(has_logits ? ctx.blocks : nullptr, words_->block);
  saved->normed_TH = Norm(ctx, x_TH, saved);
  saved->transformed_TH = Transform(ctx, saved->normed_TH, saved);
  saved->sums = sums;
  saved->scores = scores;
  if (chunk_ == 0) {
    const int64_t tokens = ctx.batch->num_tokens();
    const Tensor logits_TV = Allocate(ctx.saved, tokens, vocab_part_, "logits");
    MultiplyAll(ctx, saved->transformed_TH, logits_TV);
    const TokenScores found = OutputsOr(scores, ctx);
    const Tensor weight_T = ctx.training ? ctx.inner_batch().gradient_weight_T : Tensor();
    saved->loss = cross_entropy_.Forward(ctx, ctx.saved, logits_TV, ctx.inner_batch().labels_T,
                                         weight_T, found);
    Measure(ctx, found, sums);
  } else if (has_logits) {
    RunChunks(ctx, *saved, Tensor(), scores);
  }
  if (order_ != nullptr) {
    order_->Forward(ctx, saved->normed_TH, RowOf(sums, MeasureKind::kSentenceOrderLoss),
                    RowOf(sums, MeasureKind::kSentenceOrderAccuracy), &saved->order);
  }
}

Tensor LmHead::OutputMatrix(const LayerContext& ctx) const {
  if (!swaps_blocks(ctx)) return words_->data;
  const Tensor matrix_VH =
      Allocate(ctx.scratch, words_->data.dim(0), words_->data.dim(1), "output matrix");
  SwapBlocks(ctx, words_->data, matrix_VH);
  return matrix_VH;
}

void LmHead::Multiply(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TV) const {
  if (!ctx.is_grid()) return ops::LinearForward(ctx.stream, x_TH, words_->data, bias_V(), y_TV);
  Arena::Scope scope(ctx.scratch);
  GridForward(ctx, GridTurn::kInward, x_TH, OutputMatrix(ctx), Tensor(), y_TV);
}

void LmHead::MultiplyAll(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TV) const {
  if (!overlaps_ || !ctx.sequence_parallel) return Multiply(ctx, Gather(ctx, x_TH), y_TV);
  GatherInPieces(ctx, x_TH, [&](const Tensor& rows_TH, int64_t begin) {
    Multiply(ctx, rows_TH, y_TV.Slice(0, begin, begin + rows_TH.dim(0)));
  });
}

AsyncCall LmHead::MultiplyBack(const LayerContext& ctx, const Tensor& dy_TV,
                               const Tensor& dx_TH) const {
  if (ctx.is_grid()) {
    Arena::Scope scope(ctx.scratch);
    GridBackwardInput(ctx, GridTurn::kInward, dy_TV, OutputMatrix(ctx), dx_TH);
    return AsyncCall();
  }
  const Tensor summand_TH = SummandOf(ctx, dx_TH);
  ops::LinearBackwardInput(ctx.stream, dy_TV, words_->data, summand_TH);
  return StartReduce(ctx, summand_TH, dx_TH);
}

Tensor LmHead::RowOf(const Tensor& sums, MeasureKind kind) const {
  const int64_t row = megatron::RowOf(measures_, kind);
  return row < 0 ? Tensor() : sums.Select(0, row);
}

LmHead::TokenScores LmHead::OutputsOr(const TokenScores& scores, const LayerContext& ctx) const {
  const auto allocate = [&] {
    return ctx.scratch->Allocate(DType::kFloat32, {ctx.batch->num_tokens()}, "loss");
  };
  TokenScores outputs = scores;
  if (!outputs.loss_T) outputs.loss_T = allocate();
  const bool counts_hits = megatron::RowOf(measures_, MeasureKind::kLmAccuracy) >= 0 ||
                           megatron::RowOf(measures_, MeasureKind::kExactSpanAccuracy) >= 0;
  if (counts_hits && !outputs.hit_T) outputs.hit_T = allocate();
  return outputs;
}

void LmHead::Measure(const LayerContext& ctx, const TokenScores& found, const Tensor& sums) const {
  const Tensor& weight_T = ctx.inner_batch().loss_weight_T;
  ops::WeightedSum(ctx.stream, found.loss_T, weight_T, RowOf(sums, MeasureKind::kLmLoss));
  if (const Tensor hits = RowOf(sums, MeasureKind::kLmAccuracy))
    ops::WeightedSum(ctx.stream, found.hit_T, weight_T, hits);
  if (const Tensor spans = RowOf(sums, MeasureKind::kExactSpanAccuracy))
    CountExactSpans(ctx, found.hit_T, spans);
}

void LmHead::RunChunks(const LayerContext& ctx, const Saved& saved, const Tensor& dx_TH,
                       const TokenScores& scores) const {
  const Tensor x_TH = Gather(ctx, saved.transformed_TH);
  const TokenScores found = OutputsOr(scores, ctx);
  const Tensor weight_T = dx_TH.empty() ? Tensor() : ctx.batch->gradient_weight_T;
  const int64_t tokens = x_TH.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += chunk_) {
    const auto rows = [&, end = std::min(begin + chunk_, tokens)](const Tensor& of) {
      return of.empty() ? of : of.Slice(0, begin, end);
    };
    Arena::Scope scope(ctx.scratch);
    const Tensor logits_CV =
        Allocate(ctx.scratch, rows(x_TH).dim(0), words_->data.dim(0), "logits");
    ops::LinearForward(ctx.stream, rows(x_TH), words_->data, bias_V(), logits_CV);
    const VocabParallelCrossEntropy::Saved loss =
        cross_entropy_.Forward(ctx, ctx.scratch, logits_CV, rows(ctx.batch->labels_T),
                               rows(weight_T), {rows(found.loss_T), rows(found.hit_T)});
    if (dx_TH.empty()) continue;
    const Tensor dlogits_CV = cross_entropy_.Backward(ctx, loss);
    ops::LinearBackwardInput(ctx.stream, dlogits_CV, words_->data, rows(dx_TH));
    AddLinearGradients(ctx.stream, dlogits_CV, rows(x_TH), *words_, bias_gradient_V());
  }
  Measure(ctx, found, saved.sums);
}

void LmHead::Backward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved) {
  const TraceSpan span(ctx.stream, "head");
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse own(OwnBlocks(ctx), own_block_, words_->block);
  const WeightsInUse words(ctx.blocks, words_->block);
  const GradientsInUse own_gradients(OwnBlocks(ctx), own_block_,
                                     /*last=*/!has_bias() || !PutsOff(ctx));
  const GradientsInUse words_gradients(ctx.blocks, words_->block,
                                       /*last=*/!is_used_later_ && !PutsOff(ctx));
  // The gradient passes through at most three tensors, the last of which is dx.
  auto next = [&](bool is_last) {
    return is_last ? dx_TH : Allocate(ctx.scratch, ctx.rows(), dx_TH.dim(1), "norm gradient");
  };
  Tensor d_TH = next(norm_ == nullptr && transform_ == nullptr);
  AsyncCall gathering, reducing;
  Tensor all_TH;
  if (chunk_ == 0) {
    if (!PutsOff(ctx) && AddsToWords())
      gathering = StartGather(ctx, saved->transformed_TH, &all_TH);
    const Tensor dlogits_TV = cross_entropy_.Backward(ctx, saved->loss);
    reducing = MultiplyBack(ctx, dlogits_TV, d_TH);
  } else {
    const Tensor summand_TH = SummandOf(ctx, d_TH);
    RunChunks(ctx, *saved, summand_TH, saved->scores);
    reducing = StartReduce(ctx, summand_TH, d_TH);
  }
  gathering.Wait();
  if (chunk_ == 0 && !PutsOff(ctx)) AddWordsGradient(ctx, *saved, all_TH);
  reducing.Wait();
  if (output_scale_ != 1) ops::Scale(ctx.stream, output_scale_, d_TH);
  if (transform_ != nullptr) {
    const Tensor dnormed_TH = next(norm_ == nullptr);
    transform_->Backward(ctx, d_TH, dnormed_TH, saved->transform);
    d_TH = dnormed_TH;
  }
  if (order_ != nullptr) order_->Backward(ctx, d_TH, saved->order);
  if (norm_ != nullptr) norm_->Backward(ctx, d_TH, Tensor(), dx_TH, saved->norm);
}

void LmHead::BackwardWeight(const LayerContext& ctx, const Saved& saved) {
  const TraceSpan span(ctx.stream, "head");
  if (!PutsOff(ctx)) return;
  const GradientsInUse own(has_bias() ? OwnBlocks(ctx) : nullptr, own_block_);
  const GradientsInUse words(ctx.blocks, words_->block);
  AddWordsGradient(ctx, saved, Tensor());
}

// Backward has written the logits' gradient over the logits.
void LmHead::AddWordsGradient(const LayerContext& ctx, const Saved& saved, const Tensor& all_TH) {
  Arena::Scope scope(ctx.scratch);
  if (swaps_blocks(ctx)) {
    const auto allocate = [&] {
      return ctx.scratch->Allocate(DType::kFloat32, words_->grad.shape(), "output matrix gradient");
    };
    const Tensor theirs_VH = allocate(), mine_VH = allocate();
    ops::Zero(ctx.stream, theirs_VH);
    GridBackwardWeight(ctx, GridTurn::kInward, saved.loss.logits_TV, saved.transformed_TH,
                       theirs_VH, Tensor());
    SwapBlocks(ctx, theirs_VH, mine_VH);
    return ops::Add(ctx.stream, mine_VH, words_->grad);
  }
  if (ctx.is_grid()) {
    return GridBackwardWeight(ctx, GridTurn::kInward, saved.loss.logits_TV, saved.transformed_TH,
                              words_->grad, Tensor());
  }
  if (!AddsToWords()) return;
  const Tensor x_TH = all_TH.empty() ? Gather(ctx, saved.transformed_TH) : all_TH;
  AddLinearGradients(ctx.stream, saved.loss.logits_TV, x_TH, *words_, bias_gradient_V());
}

void LmHead::Predict(const LayerContext& ctx, const Tensor& x_TH, const Tensor& token_P,
                     const Tensor& logits_PV) const {
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse own(OwnBlocks(ctx), own_block_, words_->block);
  const WeightsInUse words(ctx.blocks, words_->block);
  const int64_t rows = token_P.dim(0);
  Saved forgotten;
  const Tensor x_PH = Allocate(ctx.saved, rows, x_TH.dim(1), "predicting tokens");
  ops::EmbeddingForward(ctx.stream, token_P, x_TH, /*first_row=*/0, /*accumulate=*/false, x_PH);
  const Tensor output_PH = Transform(ctx, Norm(ctx, x_PH, &forgotten), &forgotten);
  const int ranks = ctx.tensor_group.size();
  const bool in_place = ranks == 1 && logits_PV.dtype() == dtype_;
  const Tensor mine_PV = in_place ? logits_PV : Allocate(ctx.scratch, rows, vocab_part_, "logits");
  Multiply(ctx, output_PH, mine_PV);
  if (softcap_ > 0) ops::SoftCap(ctx.stream, softcap_, mine_PV);
  if (in_place) return;
  if (ranks == 1) return ops::Copy(ctx.stream, mine_PV, logits_PV);
  const Tensor all_RPV =
      ctx.scratch->Allocate(dtype_, {ranks, rows, vocab_part_}, "logits of all ranks");
  ctx.tensor_group.AllGather(mine_PV.Flatten(), all_RPV.Flatten(), ctx.stream);
  for (int rank = 0; rank < ranks; ++rank) {
    ops::Copy(ctx.stream, all_RPV.Select(0, rank),
              logits_PV.Slice(1, rank * vocab_part_, (rank + 1) * vocab_part_));
  }
}

void LmHead::AppendParameters(std::vector<Parameter*>* out) {
  std::vector<Parameter*> own;
  if (norm_ != nullptr) norm_->AppendParameters(&own);
  if (transform_ != nullptr) transform_->AppendParameters(&own);
  if (has_bias()) own.push_back(&bias_V_);
  if (order_ != nullptr) order_->AppendParameters(&own);
  if (own.empty()) return;
  own_block_ = NextBlock(*out);
  AppendBlock(own, out);
}

}  // namespace megatron
