#include "megatron/models/gpt_stage.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace megatron {

GptStage::GptStage(const GptOptions& options, const StagePlacement& placement,
                   const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger,
                   const ExpertGroups& expert_groups)
    : options_(options),
      placement_(placement),
      tensor_group_(tensor_group),
      expert_groups_(expert_groups) {
  const TransformerOptions& transformer = options.transformer;
  const int parts = placement.stages * placement.chunks;
  if (placement_.layers.empty()) {
    CHECK_EQ(transformer.num_layers % parts, 0) << transformer.num_layers << " over " << parts;
    placement_.layers.assign(parts, transformer.num_layers / parts);
  }
  CHECK_EQ(static_cast<int>(placement_.layers.size()), parts);
  CHECK_EQ(std::accumulate(placement_.layers.begin(), placement_.layers.end(), int64_t{0}),
           transformer.num_layers);
  for (int chunk = 0; chunk < placement.chunks; ++chunk) chunks_.push_back(MakeChunk(chunk));
  MakeRouterState(device, ledger);
  if (transformer.rotary) {
    rotary_ = std::make_unique<RotaryTables>(transformer.rotary_options, transformer.kv_channels,
                                             options.max_positions, device, ledger);
  }
  MakeEmbedding();
  if (placement.last()) MakeHead(device, ledger);
}

GptStage::Chunk GptStage::MakeChunk(int index) const {
  const int part = PositionOf(placement_.order, placement_.stages, {placement_.stage, index});
  const int64_t count = placement_.layers[part];
  const int64_t first_layer =
      std::accumulate(placement_.layers.begin(), placement_.layers.begin() + part, int64_t{0});
  Chunk chunk;
  chunk.first = part == 0;
  chunk.last = part == static_cast<int>(placement_.layers.size()) - 1;
  chunk.layers = std::make_unique<LayerStack>(
      LayerStackOptions{options_.transformer, options_.layer_recompute, first_layer, count},
      tensor_group_, expert_groups_);
  return chunk;
}

std::vector<MoeLayer*> GptStage::moe_layers() const {
  std::vector<MoeLayer*> layers;
  for (const Chunk& chunk : chunks_) {
    for (MoeLayer* layer : chunk.layers->moe_layers()) layers.push_back(layer);
  }
  return layers;
}

void GptStage::MakeRouterState(Device device, MemoryLedger* ledger) {
  const std::vector<MoeLayer*> layers = moe_layers();
  std::vector<std::string> names;
  for (const MoeLayer* layer : layers) names.push_back(layer->router_name());
  router_state_ = RouterState(options_.transformer.moe, names, device, ledger);
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->set_state(router_state_.layer(i));
}

std::unique_ptr<VocabParallelEmbedding> GptStage::MakeTable(const std::string& name,
                                                            float init_std) const {
  return std::make_unique<VocabParallelEmbedding>(
      name, options_.padded_vocab_size, options_.transformer.hidden_size, init_std, tensor_group_);
}

void GptStage::MakeEmbedding() {
  if (placement_.first() || (placement_.last() && options_.tied_embeddings)) {
    word_embeddings_ = MakeTable("embedding.word_embeddings.weight", options_.embedding_init_std);
    word_embeddings_->weight().tied = options_.tied_embeddings && placement_.last_stage() != 0;
    word_embeddings_->weight().owner = placement_.first();
  }
  if (placement_.first())
    embedding_ = std::make_unique<TokenEmbedding>(options_, word_embeddings_.get());
}

void GptStage::MakeHead(Device device, MemoryLedger* ledger) {
  if (!options_.tied_embeddings)
    output_layer_ = MakeTable("output_layer.weight", options_.transformer.init_std);
  head_ = std::make_unique<LmHead>(options_, tensor_group_,
                                   &(output_layer_ ? output_layer_ : word_embeddings_)->weight());
  const Shape sums{static_cast<int64_t>(measures().size()), 2};
  loss_buffer_ = Buffer(device, sums.numel() * SizeOf(DType::kFloat32), "loss", ledger);
  loss_sums_ = loss_buffer_.At(0, DType::kFloat32, sums);
}

std::vector<Parameter*> GptStage::parameters() {
  std::vector<Parameter*> all;
  if (embedding_ != nullptr) {
    embedding_->AppendParameters(&all);
  } else if (word_embeddings_ != nullptr) {
    AppendBlock({&word_embeddings_->weight()}, &all);
  }
  for (const Chunk& chunk : chunks_) chunk.layers->AppendParameters(&all);
  if (head_ != nullptr) head_->AppendParameters(&all);
  if (output_layer_ != nullptr) AppendBlock({&output_layer_->weight()}, &all);
  return all;
}

void GptStage::SetMemory(StageMemory* memory) {
  memory_ = memory;
  CHECK_EQ(memory->slots.size(), chunks_.size());
  for (size_t c = 0; c < chunks_.size(); ++c) chunks_[c].saved.resize(memory->slots[c].size());
}

void GptStage::StartPredicting(int64_t token, const Tensor& logits_V) {
  mode_ = Mode::kPredict;
  predicted_token_ = token;
  predicted_logits_V_ = logits_V;
}

// A text may have any number of tokens while it grows: they are not shared out.
bool GptStage::sequence_parallel() const {
  return options_.transformer.sequence_parallel && tensor_group_.size() > 1 &&
         mode_ != Mode::kPredict;
}

std::vector<TensorSpec> GptStage::EdgeSpecs(int microbatch) const {
  const int64_t rows =
      (*batches_)[microbatch].num_tokens() / (sequence_parallel() ? tensor_group_.size() : 1);
  return {{options_.transformer.dtype, {rows, options_.transformer.hidden_size}}};
}

std::vector<TensorSpec> GptStage::InputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].first) return {};
  return EdgeSpecs(microbatch);
}

std::vector<TensorSpec> GptStage::OutputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].last) return {};
  return EdgeSpecs(microbatch);
}

LayerContext GptStage::Context(const WorkItem& item, const Stream& stream) const {
  return {
      tensor_group_,
      stream,
      memory_->slots[item.chunk][item.slot].get(),
      &memory_->scratch,
      &(*batches_)[item.microbatch],
      options_.dropout_seed,
      mode_ == Mode::kTrain,
      sequence_parallel(),
      &memory_->recompute,
      item.deferred_slot < 0 ? nullptr : memory_->deferred[item.chunk][item.deferred_slot].get(),
      blocks_,
      mode_ == Mode::kPredict ? ProcessGroup() : context_group_};
}

Tensor GptStage::AllocateHidden(Arena* arena, int64_t tokens, const char* name) const {
  return arena->Allocate(options_.transformer.dtype, {tokens, options_.transformer.hidden_size},
                         name);
}

Tensor GptStage::ChunkInput(const LayerContext& ctx, const Chunk& chunk,
                            absl::Span<const Tensor> inputs, TokenEmbedding::Saved* saved) const {
  if (!chunk.first) return inputs[0];
  const Tensor x_TH = AllocateHidden(ctx.saved, ctx.rows(), "embedding");
  embedding_->Forward(ctx, x_TH, saved);
  return x_TH;
}

Tensor GptStage::ChunkOutput(const LayerContext& ctx, const Chunk& chunk,
                             absl::Span<const Tensor> outputs) const {
  return chunk.last ? AllocateHidden(ctx.saved, ctx.rows(), "layer output") : outputs[0];
}

void GptStage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                       absl::Span<const Tensor> outputs, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  ctx.saved->Reset();
  if (mode_ != Mode::kTrain) {
    ForwardOnly(ctx, chunk, inputs, outputs);
    return;
  }
  Saved& saved = chunk.saved[item.slot];
  const Tensor x_TH = ChunkInput(ctx, chunk, inputs, &saved.embedding);
  const Tensor y_TH = ChunkOutput(ctx, chunk, outputs);
  chunk.layers->Forward(ctx, rotary(), x_TH, y_TH, &saved.layers);
  if (chunk.last) head_->Forward(ctx, y_TH, loss_sums_, &saved.head);
}

void GptStage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                        absl::Span<const Tensor> input_gradients, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  if (ctx.defers()) ctx.deferred->Reset();
  Saved& saved = chunk.saved[item.slot];
  Arena::Scope scope(ctx.scratch);
  Tensor dy_TH;
  if (chunk.last) {
    dy_TH = AllocateHidden(ctx.scratch, ctx.rows(), "layer gradient");
    head_->Backward(ctx, dy_TH, &saved.head);
  } else {
    dy_TH = output_gradients[0];
  }
  const Tensor dx_TH =
      chunk.first ? AllocateHidden(ctx.scratch, ctx.rows(), "layer gradient") : input_gradients[0];
  chunk.layers->Backward(ctx, rotary(), dy_TH, dx_TH, &saved.layers);
  if (chunk.first) embedding_->Backward(ctx, dx_TH, saved.embedding);
}

void GptStage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  const LayerContext ctx = Context(item, stream);
  Saved& saved = chunk.saved[item.slot];
  if (chunk.last) head_->BackwardWeight(ctx, saved.head);
  chunk.layers->BackwardWeight(ctx, &saved.layers);
}

void GptStage::ForwardOnly(const LayerContext& ctx, const Chunk& chunk,
                           absl::Span<const Tensor> inputs, absl::Span<const Tensor> outputs) {
  Saved forgotten;
  const Tensor x_TH = ChunkInput(ctx, chunk, inputs, &forgotten.embedding);
  const Tensor y_TH = ChunkOutput(ctx, chunk, outputs);
  chunk.layers->ForwardOnly(ctx, rotary(), x_TH, y_TH);
  if (!chunk.last) return;
  if (mode_ == Mode::kPredict) {
    head_->Predict(ctx, y_TH, predicted_token_, predicted_logits_V_);
  } else {
    head_->Forward(ctx, y_TH, loss_sums_, &forgotten.head);
  }
}

}  // namespace megatron
