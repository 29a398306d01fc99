#include "megatron/models/stack_stage.h"

#include <utility>

#include "megatron/ops/elementwise.h"

namespace megatron {

StackStage::StackStage(const ModelOptions& options, const Measures& measures,
                       const StageSetup& setup)
    : ModelStage(options, measures, setup), depths_(options.mtp_num_layers) {
  std::vector<MoeLayer*> experts;
  for (int c = 0; c < setup.placement.chunks; ++c) {
    const Part part = PartOf(c);
    const LayerStackOptions stack = {
        this->options().transformer, options.layer_recompute,      part.begin,
        part.end - part.begin,       options.num_offloaded_layers, options.offload_modules};
    Chunk chunk;
    chunk.part = part;
    chunk.layers = std::make_unique<LayerStack>(stack, setup.layer_group(), setup.expert_groups);
    for (MoeLayer* layer : chunk.layers->moe_layers()) experts.push_back(layer);
    chunks_.push_back(std::move(chunk));
  }
  if (has_mtp()) {
    mtp_ = std::make_unique<MultiTokenPrediction>(this->options(), setup.layer_group(),
                                                  setup.expert_groups, word_embeddings());
    for (MoeLayer* layer : mtp_->moe_layers()) experts.push_back(layer);
  }
  if (setup.placement.last()) {
    const Measures loss = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}};
    for (int64_t d = 0; d < depths_; ++d) {
      mtp_heads_.push_back(std::make_unique<LmHead>(this->options(), loss, setup.layer_group(),
                                                    output_matrix(), /*used_later=*/true));
    }
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

int64_t StackStage::NumHidden() const { return has_loss() ? 1 + depths_ : 1; }

StackStage::HiddenStates StackStage::AllocateHiddenStates(Arena* arena, const LayerContext& ctx,
                                                          const char* name) const {
  HiddenStates hidden;
  for (int64_t i = 0; i < NumHidden(); ++i) hidden.push_back(AllocateHidden(arena, ctx, name));
  return hidden;
}

std::vector<TensorSpec> StackStage::EdgeSpecs(int microbatch, int64_t tensors) const {
  return std::vector<TensorSpec>(tensors, HiddenSpec(batch(microbatch).num_tokens()));
}

std::vector<TensorSpec> StackStage::InputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].part.first) return {};
  return EdgeSpecs(microbatch, HasHeadsAlone(chunks_[chunk]) ? NumHidden() : 1);
}

std::vector<TensorSpec> StackStage::OutputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].part.last) return {};
  return EdgeSpecs(microbatch, chunks_[chunk].part.has_mtp ? NumHidden() : 1);
}

Tensor StackStage::ChunkInput(const LayerContext& ctx, const Chunk& chunk,
                              absl::Span<const Tensor> inputs, TokenEmbedding::Saved* saved) const {
  if (!chunk.part.first) return inputs[0];
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
  const Part& part = chunk.part;
  if (HasHeadsAlone(chunk)) return RunHeads(ctx, inputs, saved);
  const Tensor x_TH = ChunkInput(ctx, chunk, inputs, &saved->embedding);
  const bool is_sent = !part.last && !part.has_mtp;
  const Tensor y_TH = is_sent ? outputs[0] : AllocateHidden(ctx.saved, ctx, "layer output");
  saved->layers.trains_in_front = TrainsInFront(chunk);
  RunLayers(*chunk.layers, ctx, rotary(), x_TH, y_TH, &saved->layers, OffloadOf(item));
  const auto forget = [&] {  // what nothing reads any more
    if (training() && !part.has_backward) ctx.saved->Reset();
  };
  if (is_sent) return forget();
  if (!part.has_mtp) return RunHead(ctx, y_TH, &saved->head);
  HiddenStates hidden = AllocateHiddenStates(ctx.saved, ctx, "norm output");
  mtp_->Forward(ctx, rotary(), y_TH, hidden, &saved->mtp);
  if (part.last) return RunHeads(ctx, hidden, saved);
  for (size_t i = 0; i < hidden.size(); ++i) ops::Copy(stream, hidden[i], outputs[i]);
  forget();
}

void StackStage::RunHeads(const LayerContext& ctx, absl::Span<const Tensor> hidden,
                          Saved* saved) const {
  RunHead(ctx, hidden[0], &saved->head);
  saved->mtp_heads.resize(hidden.size() - 1);
  for (size_t d = 0; d + 1 < hidden.size(); ++d) {
    const auto depth = static_cast<int64_t>(d);
    const MicroBatch batch = ctx.batch->AtDepth(depth);
    mtp_heads_[d]->Forward(MultiTokenPrediction::ContextOfDepth(ctx, batch), hidden[d + 1],
                           loss_sums().Slice(0, depth + 1, depth + 2), &saved->mtp_heads[d]);
  }
}

// The model's own head comes last: it ends the gradient of the output matrix, or puts it off.
void StackStage::RunHeadsBack(const LayerContext& ctx, absl::Span<const Tensor> dhidden,
                              Saved* saved) {
  for (size_t d = mtp_heads_.size(); d-- > 0;) {
    const MicroBatch batch = ctx.batch->AtDepth(static_cast<int64_t>(d));
    mtp_heads_[d]->Backward(MultiTokenPrediction::ContextOfDepth(ctx, batch), dhidden[d + 1],
                            &saved->mtp_heads[d]);
  }
  RunHeadBack(ctx, dhidden[0], &saved->head);
}

void StackStage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                          absl::Span<const Tensor> input_gradients, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  if (ctx.defers()) ctx.deferred->Reset();
  Saved& saved = chunk.saved[item.slot];
  Arena::Scope scope(ctx.scratch);
  const Part& part = chunk.part;
  if (HasHeadsAlone(chunk)) {
    HiddenStates dhidden(input_gradients.begin(), input_gradients.end());
    if (dhidden.empty()) dhidden = AllocateHiddenStates(ctx.scratch, ctx, "norm gradient");
    return RunHeadsBack(ctx, dhidden, &saved);
  }
  const bool is_received = !part.last && !part.has_mtp;
  const Tensor dy_TH =
      is_received ? output_gradients[0] : AllocateHidden(ctx.scratch, ctx, "layer gradient");
  if (part.has_mtp) {
    HiddenStates dhidden(output_gradients.begin(), output_gradients.end());
    if (part.last) {
      dhidden = AllocateHiddenStates(ctx.scratch, ctx, "norm gradient");
      RunHeadsBack(ctx, dhidden, &saved);
    }
    mtp_->Backward(ctx, rotary(), dhidden, dy_TH, &saved.mtp);
  } else if (part.last) {
    RunHeadBack(ctx, dy_TH, &saved.head);
  }
  const Tensor dx_TH = input_gradients.empty() ? AllocateHidden(ctx.scratch, ctx, "layer gradient")
                                               : input_gradients[0];
  chunk.layers->Backward(ctx, rotary(), dy_TH, dx_TH, &saved.layers);
  if (part.first && TrainsInFront(chunk)) embedding()->Backward(ctx, dx_TH, saved.embedding);
}

void StackStage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  Saved& saved = chunk.saved[item.slot];
  if (chunk.part.last) RunHeadBackWeight(ctx, saved.head);
  chunk.layers->BackwardWeight(ctx, &saved.layers);
}

}  // namespace megatron
