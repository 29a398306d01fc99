#include "megatron/models/stack_stage.h"

#include <utility>

namespace megatron {

StackStage::StackStage(const ModelOptions& options, const Measures& measures,
                       const StageSetup& setup)
    : ModelStage(options, measures, setup) {
  std::vector<MoeLayer*> experts;
  for (int c = 0; c < setup.placement.chunks; ++c) {
    const Part part = PartOf(c);
    const LayerStackOptions stack = {
        this->options().transformer, options.layer_recompute,      part.begin,
        part.end - part.begin,       options.num_offloaded_layers, options.offload_modules};
    Chunk chunk;
    chunk.first = part.first;
    chunk.last = part.last;
    chunk.layers = std::make_unique<LayerStack>(stack, setup.layer_group(), setup.expert_groups);
    for (MoeLayer* layer : chunk.layers->moe_layers()) experts.push_back(layer);
    chunks_.push_back(std::move(chunk));
  }
  if (setup.placement.last() && options.mtp_num_layers > 0) {
    mtp_ = std::make_unique<MultiTokenPrediction>(this->options(), setup.layer_group(),
                                                  setup.expert_groups, word_embeddings(),
                                                  output_matrix());
    for (MoeLayer* layer : mtp_->moe_layers()) experts.push_back(layer);
  }
  SetExperts(experts);
  if (options.transformer.rotary) {
    rotary_ = std::make_unique<RotaryTables>(options.transformer.rotary_options,
                                             options.transformer.rotary_size(),
                                             options.max_positions, setup.device, setup.ledger);
  }
}

void StackStage::AppendInnerParameters(std::vector<Parameter*>* out) {
  for (const Chunk& chunk : chunks_) chunk.layers->AppendParameters(out);
  if (mtp_ != nullptr) mtp_->AppendParameters(out);
}

void StackStage::SetSlots(const StageMemory::Slots& slots) {
  for (size_t c = 0; c < chunks_.size(); ++c) chunks_[c].saved.resize(slots[c].size());
}

std::vector<TensorSpec> StackStage::InputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].first) return {};
  return {HiddenSpec(batch(microbatch).num_tokens())};
}

std::vector<TensorSpec> StackStage::OutputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].last) return {};
  return {HiddenSpec(batch(microbatch).num_tokens())};
}

Tensor StackStage::ChunkInput(const LayerContext& ctx, const Chunk& chunk,
                              absl::Span<const Tensor> inputs, TokenEmbedding::Saved* saved) const {
  if (!chunk.first) return inputs[0];
  const Tensor x_TH = AllocateHidden(ctx.saved, ctx, "embedding");
  embedding()->Forward(ctx, x_TH, saved);
  return x_TH;
}

void StackStage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                         absl::Span<const Tensor> outputs, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  ctx.saved->Reset();
  Saved forgotten;
  Saved* const saved = training() ? &chunk.saved[item.slot] : &forgotten;
  const Tensor x_TH = ChunkInput(ctx, chunk, inputs, &saved->embedding);
  const Tensor y_TH = chunk.last ? AllocateHidden(ctx.saved, ctx, "layer output") : outputs[0];
  RunLayers(*chunk.layers, ctx, rotary(), x_TH, y_TH, &saved->layers, OffloadOf(item));
  if (!chunk.last) return;
  RunHead(ctx, y_TH, &saved->head);
  if (mtp_ != nullptr && has_loss())
    mtp_->Forward(ctx, rotary(), saved->head.normed_TH, loss_sums(), &saved->mtp);
}

void StackStage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                          absl::Span<const Tensor> input_gradients, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  if (ctx.defers()) ctx.deferred->Reset();
  Saved& saved = chunk.saved[item.slot];
  Arena::Scope scope(ctx.scratch);
  Tensor dy_TH;
  if (chunk.last) {
    dy_TH = AllocateHidden(ctx.scratch, ctx, "layer gradient");
    Tensor dnormed_TH;
    if (mtp_ != nullptr) {
      dnormed_TH = AllocateHidden(ctx.scratch, ctx, "norm gradient");
      mtp_->Backward(ctx, rotary(), dnormed_TH, &saved.mtp);
    }
    RunHeadBack(ctx, dy_TH, &saved.head, dnormed_TH);
  } else {
    dy_TH = output_gradients[0];
  }
  const Tensor dx_TH =
      chunk.first ? AllocateHidden(ctx.scratch, ctx, "layer gradient") : input_gradients[0];
  chunk.layers->Backward(ctx, rotary(), dy_TH, dx_TH, &saved.layers);
  if (chunk.first) embedding()->Backward(ctx, dx_TH, saved.embedding);
}

void StackStage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  Saved& saved = chunk.saved[item.slot];
  if (chunk.last) RunHeadBackWeight(ctx, saved.head);
  chunk.layers->BackwardWeight(ctx, &saved.layers);
}

}  // namespace megatron
