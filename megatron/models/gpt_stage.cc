#include "megatron/models/gpt_stage.h"

#include <algorithm>
#include <utility>

#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron {

GptStage::GptStage(const GptOptions& options, const StagePlacement& placement,
                   const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger)
    : options_(options),
      placement_(placement),
      tensor_group_(tensor_group),
      cross_entropy_({tensor_group.rank() * options.padded_vocab_size / tensor_group.size(),
                      options.vocab_size}) {
  const TransformerOptions& transformer = options.transformer;
  CHECK_EQ(transformer.num_layers % placement.stages, 0)
      << transformer.num_layers << " layers over " << placement.stages;
  const int64_t count = transformer.num_layers / placement.stages;
  first_layer_ = placement.stage * count;
  for (int64_t i = 0; i < count; ++i) {
    layers_.push_back(
        std::make_unique<TransformerLayer>(transformer, first_layer_ + i, tensor_group));
  }
  if (transformer.rotary) {
    rotary_ = std::make_unique<RotaryTables>(transformer.rotary_options, transformer.kv_channels,
                                             options.max_positions, device, ledger);
  }
  auto table = [&](const std::string& name, float init_std) {
    return std::make_unique<VocabParallelEmbedding>(
        name, options.padded_vocab_size, transformer.hidden_size, init_std, tensor_group);
  };
  if (placement.first() || (placement.last() && options.tied_embeddings)) {
    word_embeddings_ = table("embedding.word_embeddings.weight", options.embedding_init_std);
    word_embeddings_->weight().tied = options.tied_embeddings && placement.stages > 1;
    word_embeddings_->weight().owner = placement.first();
  }
  if (placement.first() && options.learned_positions) {
    position_embeddings_.name = "embedding.position_embeddings.weight";
    position_embeddings_.sharding = Replicated({options.max_positions, transformer.hidden_size});
    position_embeddings_.initializer = Initializer::Normal(options.embedding_init_std);
  }
  if (placement.last()) {
    final_norm_ = std::make_unique<NormLayer>(
        NormOptions{transformer.norm, "decoder.final_layernorm.weight",
                    "decoder.final_layernorm.bias", transformer.hidden_size});
    if (!options.tied_embeddings)
      output_layer_ = table("output_layer.weight", transformer.init_std);
    loss_buffer_ = Buffer(device, 2 * SizeOf(DType::kFloat32), "loss", ledger);
    loss_sums_ = loss_buffer_.At(0, DType::kFloat32, {2});
  }
  const LayerRecompute& recompute = options.layer_recompute;
  for (int64_t begin = 0; begin < count;) {
    const bool again = recompute.method == LayerRecompute::kUniform ||
                       (recompute.method == LayerRecompute::kBlock && begin < recompute.num_layers);
    const int64_t length = recompute.method == LayerRecompute::kUniform ? recompute.num_layers : 1;
    segments_.push_back({begin, std::min(begin + length, count), again});
    begin = segments_.back().end;
  }
}

std::vector<Parameter*> GptStage::parameters() {
  std::vector<Parameter*> all;
  if (word_embeddings_ != nullptr) all.push_back(&word_embeddings_->weight());
  if (!position_embeddings_.name.empty()) all.push_back(&position_embeddings_);
  for (const auto& layer : layers_) layer->AppendParameters(&all);
  if (final_norm_ != nullptr) final_norm_->AppendParameters(&all);
  if (output_layer_ != nullptr) all.push_back(&output_layer_->weight());
  return all;
}

void GptStage::SetMemory(StageMemory* memory) {
  memory_ = memory;
  saved_.resize(memory->slots.size());
  for (Saved& saved : saved_) {
    saved.layer_input.resize(layers_.size() + 1);
    saved.layers.resize(layers_.size());
  }
}

std::vector<TensorSpec> GptStage::InputSpecs(int microbatch, int) const {
  if (placement_.first()) return {};
  return {{options_.transformer.dtype,
           {(*batches_)[microbatch].num_tokens(), options_.transformer.hidden_size}}};
}

std::vector<TensorSpec> GptStage::OutputSpecs(int microbatch, int) const {
  if (placement_.last()) return {};
  return {{options_.transformer.dtype,
           {(*batches_)[microbatch].num_tokens(), options_.transformer.hidden_size}}};
}

LayerContext GptStage::Context(const MicroBatch& batch, Arena* saved, const Stream& stream) const {
  return {tensor_group_, stream, saved, &memory_->scratch, &batch, options_.dropout_seed};
}

const Parameter& GptStage::HeadWeight() const {
  return output_layer_ != nullptr ? output_layer_->weight() : word_embeddings_->weight();
}

Tensor GptStage::AllocateHidden(Arena* arena, int64_t tokens, const char* name) const {
  return arena->Allocate(options_.transformer.dtype, {tokens, options_.transformer.hidden_size},
                         name);
}

void GptStage::Embed(const LayerContext& ctx, const Tensor& out_TH) const {
  word_embeddings_->Forward(ctx, ctx.batch->tokens_T, out_TH);
  if (options_.learned_positions) {
    ops::EmbeddingForward(ctx.stream, ctx.batch->position_T, position_embeddings_.data, 0,
                          /*accumulate=*/true, out_TH);
  }
  const ops::Dropout dropout =
      DropoutAt(ctx, options_.transformer.hidden_dropout, 0, DropoutSite::kEmbedding);
  if (dropout.probability > 0)
    ops::BiasDropoutAdd(ctx.stream, dropout, out_TH, Tensor(), Tensor(), out_TH);
}

void GptStage::EmbedBackward(const LayerContext& ctx, const Tensor& dx_TH) {
  const ops::Dropout dropout =
      DropoutAt(ctx, options_.transformer.hidden_dropout, 0, DropoutSite::kEmbedding);
  if (dropout.probability > 0) ops::DropoutBackward(ctx.stream, dropout, dx_TH, dx_TH, Tensor());
  word_embeddings_->Backward(ctx, ctx.batch->tokens_T, dx_TH);
  if (options_.learned_positions) {
    ops::EmbeddingBackward(ctx.stream, ctx.batch->position_T, dx_TH, 0, position_embeddings_.grad);
  }
}

// Reads saved->layer_input[begin] and writes layer_input[end], which is allocated here unless the
// caller has done so.
void GptStage::ForwardSegment(const LayerContext& ctx, const Segment& segment, Saved* saved) const {
  for (int64_t i = segment.begin; i < segment.end; ++i) {
    if (i + 1 < segment.end)
      saved->layer_input[i + 1] =
          AllocateHidden(ctx.saved, ctx.batch->num_tokens(), "layer output");
    layers_[i]->Forward(ctx, rotary(), saved->layer_input[i], saved->layer_input[i + 1],
                        &saved->layers[i]);
  }
}

void GptStage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                       absl::Span<const Tensor> outputs, const Stream& stream) {
  const MicroBatch& batch = (*batches_)[item.microbatch];
  Arena* slot = memory_->slots[item.slot].get();
  slot->Reset();
  LayerContext ctx = Context(batch, slot, stream);
  ctx.training = training_;
  if (!training_) {
    Evaluate(ctx, inputs, outputs);
    return;
  }
  LayerContext recomputing = ctx;
  recomputing.saved = &memory_->recompute;

  Saved& saved = saved_[item.slot];
  if (placement_.first()) {
    saved.layer_input[0] = AllocateHidden(slot, batch.num_tokens(), "embedding");
    Embed(ctx, saved.layer_input[0]);
  } else {
    saved.layer_input[0] = inputs[0];
  }
  for (const Segment& segment : segments_) {
    const bool leaves = segment.end == static_cast<int64_t>(layers_.size()) && !placement_.last();
    saved.layer_input[segment.end] =
        leaves ? outputs[0] : AllocateHidden(slot, batch.num_tokens(), "layer output");
    Arena::Scope scope(&memory_->recompute);
    ForwardSegment(segment.recompute ? recomputing : ctx, segment, &saved);
  }
  if (placement_.last()) Head(ctx, saved.layer_input.back(), &saved);
}

void GptStage::BackwardSegment(const LayerContext& ctx, const Segment& segment, const Tensor& dy_TH,
                               const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  Arena::Scope recompute_scope(&memory_->recompute);
  if (segment.recompute) {
    LayerContext recomputing = ctx;
    recomputing.saved = &memory_->recompute;
    // The output itself is not needed any more, but has to be written somewhere.
    saved->layer_input[segment.end] =
        AllocateHidden(ctx.scratch, ctx.batch->num_tokens(), "recomputed output");
    ForwardSegment(recomputing, segment, saved);
  }
  Tensor from = dy_TH;
  for (int64_t i = segment.end - 1; i >= segment.begin; --i) {
    const Tensor to = i == segment.begin
                          ? dx_TH
                          : AllocateHidden(ctx.scratch, ctx.batch->num_tokens(), "layer gradient");
    layers_[i]->Backward(ctx, rotary(), from, to, &saved->layers[i]);
    from = to;
  }
}

void GptStage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                        absl::Span<const Tensor> input_gradients, const Stream& stream) {
  const MicroBatch& batch = (*batches_)[item.microbatch];
  const LayerContext ctx = Context(batch, memory_->slots[item.slot].get(), stream);
  Saved& saved = saved_[item.slot];
  Arena::Scope scope(ctx.scratch);
  const Tensor hidden_TH[2] = {AllocateHidden(ctx.scratch, batch.num_tokens(), "layer gradient"),
                               AllocateHidden(ctx.scratch, batch.num_tokens(), "layer gradient")};
  int next = 0;
  Tensor dy_TH;
  if (placement_.last()) {
    dy_TH = hidden_TH[next++];
    HeadBackward(ctx, dy_TH, &saved);
  } else {
    dy_TH = output_gradients[0];
  }
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    const bool leaves = segment->begin == 0 && !placement_.first();
    const Tensor dx_TH = leaves ? input_gradients[0] : hidden_TH[next];
    BackwardSegment(ctx, *segment, dy_TH, dx_TH, &saved);
    dy_TH = dx_TH;
    next = 1 - next;
  }
  if (placement_.first()) EmbedBackward(ctx, dy_TH);
}

void GptStage::BackwardInput(const WorkItem&, absl::Span<const Tensor>, absl::Span<const Tensor>,
                             const Stream&) {
  LOG(FATAL) << "a GPT stage does not split its backward";
}

void GptStage::BackwardWeight(const WorkItem&, absl::Span<const Tensor>, const Stream&) {
  LOG(FATAL) << "a GPT stage does not split its backward";
}

void GptStage::Head(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = x_TH.dim(0);
  saved->normed_TH = AllocateHidden(ctx.saved, tokens, "norm output");
  final_norm_->Forward(ctx, x_TH, saved->normed_TH, &saved->final_norm);
  const Tensor& weight_VH = HeadWeight().data;
  const Tensor logits_TV =
      ctx.saved->Allocate(options_.transformer.dtype, {tokens, weight_VH.dim(0)}, "logits");
  ops::LinearForward(ctx.stream, saved->normed_TH, weight_VH, Tensor(), logits_TV);
  const Tensor loss_T = ctx.scratch->Allocate(DType::kFloat32, {tokens}, "loss");
  cross_entropy_.Forward(ctx, logits_TV, loss_T, &saved->loss);
  ops::WeightedSum(ctx.stream, loss_T, ctx.batch->loss_weight_T, loss_sums_);
}

void GptStage::HeadBackward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const Parameter& weight = HeadWeight();
  const Tensor dlogits_TV = cross_entropy_.Backward(ctx, ctx.batch->gradient_weight_T, saved->loss);
  const Tensor dnormed_TH = AllocateHidden(ctx.scratch, dx_TH.dim(0), "norm gradient");
  ops::LinearBackwardInput(ctx.stream, dlogits_TV, weight.data, dnormed_TH);
  CopyBackward(ctx, dnormed_TH);
  ops::LinearBackwardWeight(ctx.stream, dlogits_TV, saved->normed_TH, weight.grad, Tensor());
  final_norm_->Backward(ctx, dnormed_TH, Tensor(), dx_TH, saved->final_norm);
}

Tensor GptStage::RunLayers(const LayerContext& ctx, absl::Span<const Tensor> inputs) {
  const int64_t tokens = ctx.batch->num_tokens();
  const Tensor hidden_TH[2] = {AllocateHidden(ctx.saved, tokens, "layer output"),
                               AllocateHidden(ctx.saved, tokens, "layer output")};
  int next = 0;
  Tensor x_TH;
  if (placement_.first()) {
    x_TH = hidden_TH[next++];
    Embed(ctx, x_TH);
  } else {
    x_TH = inputs[0];
  }
  for (const auto& layer : layers_) {
    Arena::Scope scope(ctx.saved);
    TransformerLayer::Saved forgotten;
    layer->Forward(ctx, rotary(), x_TH, hidden_TH[next], &forgotten);
    x_TH = hidden_TH[next];
    next = 1 - next;
  }
  return x_TH;
}

void GptStage::Evaluate(const LayerContext& ctx, absl::Span<const Tensor> inputs,
                        absl::Span<const Tensor> outputs) {
  const Tensor x_TH = RunLayers(ctx, inputs);
  if (placement_.last()) {
    Saved forgotten;
    Head(ctx, x_TH, &forgotten);
  } else {
    ops::Copy(ctx.stream, x_TH, outputs[0]);
  }
}

void GptStage::Predict(const MicroBatch& batch, int64_t token, const Tensor& logits_V,
                       const Stream& stream) {
  CHECK(placement_.first() && placement_.last());
  Arena* slot = memory_->slots[0].get();
  slot->Reset();
  LayerContext ctx = Context(batch, slot, stream);
  ctx.training = false;
  Arena::Scope scope(ctx.scratch);
  const Tensor last_1H = RunLayers(ctx, {}).Slice(0, token, token + 1);
  const Tensor normed_1H = AllocateHidden(ctx.scratch, 1, "norm output");
  NormLayer::Saved forgotten;
  final_norm_->Forward(ctx, last_1H, normed_1H, &forgotten);
  const Tensor& weight_VH = HeadWeight().data;
  const Tensor mine_1V =
      ctx.scratch->Allocate(options_.transformer.dtype, {1, weight_VH.dim(0)}, "logits");
  ops::LinearForward(stream, normed_1H, weight_VH, Tensor(), mine_1V);
  const Tensor all_V =
      ctx.scratch->Allocate(options_.transformer.dtype, {options_.padded_vocab_size}, "logits");
  tensor_group_.AllGather(mine_1V.Flatten(), all_V, stream);
  ops::Copy(stream, all_V, logits_V);
}

}  // namespace megatron
