#include "megatron/models/model_stage.h"

#include <numeric>

#include "glog/logging.h"

namespace megatron {

ModelStage::ModelStage(const ModelOptions& options, const StagePlacement& placement,
                       const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger)
    : options_(options), placement_(placement), tensor_group_(tensor_group) {
  const int64_t layers = options.num_encoder_layers + options.transformer.num_layers;
  const int parts = placement.stages * placement.chunks;
  if (placement_.layers.empty()) {
    CHECK_EQ(layers % parts, 0) << layers << " over " << parts;
    placement_.layers.assign(parts, layers / parts);
  }
  CHECK_EQ(static_cast<int>(placement_.layers.size()), parts);
  CHECK_EQ(std::accumulate(placement_.layers.begin(), placement_.layers.end(), int64_t{0}), layers);
  MakeEmbedding();
  if (placement.last()) MakeHead(device, ledger);
}

ModelStage::Part ModelStage::PartOf(int chunk) const {
  const int index = PositionOf(placement_.order, placement_.stages, {placement_.stage, chunk});
  const auto begin = placement_.layers.begin();
  Part part;
  part.first = index == 0;
  part.last = index == static_cast<int>(placement_.layers.size()) - 1;
  part.begin = std::accumulate(begin, begin + index, int64_t{0});
  part.end = part.begin + placement_.layers[index];
  return part;
}

void ModelStage::SetExperts(const std::vector<MoeLayer*>& layers, Device device,
                            MemoryLedger* ledger) {
  moe_layers_ = layers;
  std::vector<std::string> names;
  for (const MoeLayer* layer : layers) names.push_back(layer->router_name());
  router_state_ = RouterState(options_.transformer.moe, names, device, ledger);
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->set_state(router_state_.layer(i));
}

std::unique_ptr<VocabParallelEmbedding> ModelStage::MakeTable(const std::string& name,
                                                              float init_std) const {
  return std::make_unique<VocabParallelEmbedding>(
      name, options_.padded_vocab_size, options_.transformer.hidden_size, init_std, tensor_group_);
}

void ModelStage::MakeEmbedding() {
  if (placement_.first() || (placement_.last() && options_.tied_embeddings)) {
    word_embeddings_ = MakeTable("embedding.word_embeddings.weight", options_.embedding_init_std);
    word_embeddings_->weight().tied = options_.tied_embeddings && placement_.last_stage() != 0;
    word_embeddings_->weight().owner = placement_.first();
  }
  if (placement_.first())
    embedding_ = std::make_unique<TokenEmbedding>(options_, word_embeddings_.get());
}

void ModelStage::MakeHead(Device device, MemoryLedger* ledger) {
  if (!options_.tied_embeddings)
    output_layer_ = MakeTable("output_layer.weight", options_.transformer.init_std);
  head_ = std::make_unique<LmHead>(options_, tensor_group_,
                                   &(output_layer_ ? output_layer_ : word_embeddings_)->weight());
  const Shape sums{static_cast<int64_t>(MeasuresOf(options_).size()), 2};
  loss_buffer_ = Buffer(device, sums.numel() * SizeOf(DType::kFloat32), "loss", ledger);
  loss_sums_ = loss_buffer_.At(0, DType::kFloat32, sums);
}

std::vector<Parameter*> ModelStage::parameters() {
  std::vector<Parameter*> all;
  if (embedding_ != nullptr) {
    embedding_->AppendParameters(&all);
  } else if (word_embeddings_ != nullptr) {
    AppendBlock({&word_embeddings_->weight()}, &all);
  }
  AppendInnerParameters(&all);
  if (head_ != nullptr) head_->AppendParameters(&all);
  if (output_layer_ != nullptr) AppendBlock({&output_layer_->weight()}, &all);
  return all;
}

void ModelStage::SetMemory(StageMemory* memory) {
  memory_ = memory;
  CHECK_EQ(static_cast<int>(memory->slots.size()), placement_.chunks);
  SetSlots(memory->slots);
}

void ModelStage::StartPredicting(int64_t token, const Tensor& logits_V) {
  mode_ = Mode::kPredict;
  predicted_token_ = token;
  predicted_logits_V_ = logits_V;
}

// A text may have any number of tokens while it grows: they are not shared out.
bool ModelStage::sequence_parallel() const {
  return options_.transformer.sequence_parallel && tensor_group_.size() > 1 &&
         mode_ != Mode::kPredict;
}

LayerContext ModelStage::Context(const WorkItem& item, const Stream& stream) const {
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

TensorSpec ModelStage::HiddenSpec(int64_t tokens) const {
  const int64_t ranks = sequence_parallel() ? tensor_group_.size() : 1;
  return {options_.transformer.dtype, {tokens / ranks, options_.transformer.hidden_size}};
}

Tensor ModelStage::AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const {
  return arena->Allocate(options_.transformer.dtype, {ctx.rows(), options_.transformer.hidden_size},
                         name);
}

void ModelStage::RunLayers(const LayerStack& stack, const LayerContext& ctx,
                           const RotaryTables* rotary, const Tensor& x_TH, const Tensor& y_TH,
                           LayerStack::Saved* saved) const {
  if (mode_ == Mode::kTrain) return stack.Forward(ctx, rotary, x_TH, y_TH, saved);
  stack.ForwardOnly(ctx, rotary, x_TH, y_TH);
}

void ModelStage::RunHead(const LayerContext& ctx, const Tensor& y_TH, LmHead::Saved* saved) const {
  if (mode_ == Mode::kPredict)
    return head_->Predict(ctx, y_TH, predicted_token_, predicted_logits_V_);
  head_->Forward(ctx, y_TH, loss_sums_, saved);
}

}  // namespace megatron
