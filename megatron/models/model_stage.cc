#include "megatron/models/model_stage.h"

#include <algorithm>
#include <numeric>

#include "absl/algorithm/container.h"
#include "glog/logging.h"
#include "megatron/layers/gated_delta_net.h"
#include "megatron/layers/mamba_mixer.h"

namespace megatron {

ModelStage::ModelStage(const ModelOptions& options, const Measures& measures,
                       const StageSetup& setup)
    : options_(options),
      measures_(measures),
      setup_(setup),
      float8_history_(options.transformer.float8.history_options) {
  Float8Options& float8 = options_.transformer.float8;
  float8.weights = &float8_weights_;
  if (float8.recipe == Float8Recipe::kDelayed) float8.history = &float8_history_;
  const int64_t layers = options.num_encoder_layers + options.transformer.num_layers;
  StagePlacement& placement = setup_.placement;
  const int parts = placement.parts();
  if (placement.layers.empty()) {
    CHECK_EQ(layers % parts, 0) << layers << " over " << parts;
    placement.layers.assign(parts, layers / parts);
  }
  CHECK_EQ(static_cast<int>(placement.layers.size()), parts);
  CHECK_EQ(std::accumulate(placement.layers.begin(), placement.layers.end(), int64_t{0}), layers);
  CHECK(!placement.mtp_before_last ||
        (options.mtp_num_layers > 0 && parts > 1 && placement.layers.back() == 0));
  if (setup.tensor_grid.is_grid()) {
    CHECK(options.kind == ModelKind::kGpt);
    options_.transformer.grid = setup.tensor_grid.Place();
  }
  MakeEmbedding();
  if (placement.last()) MakeHead();
}

ModelStage::Part ModelStage::PartOf(int chunk) const {
  const StagePlacement& placement = setup_.placement;
  const int index = PositionOf(placement.order, placement.stages, {placement.stage, chunk});
  const auto begin = placement.layers.begin();
  Part part;
  part.first = index == 0;
  part.last = index == static_cast<int>(placement.layers.size()) - 1;
  part.has_mtp = options_.mtp_num_layers > 0 && index == placement.mtp_part();
  part.begin = std::accumulate(begin, begin + index, int64_t{0});
  part.end = part.begin + placement.layers[index];
  part.trains_before = index > placement.first_trained;
  part.has_backward = index >= placement.first_trained;
  return part;
}

void ModelStage::SetExperts(const std::vector<MoeLayer*>& layers) {
  moe_layers_ = layers;
  std::vector<std::string> names;
  for (const MoeLayer* layer : layers) names.push_back(layer->router_name());
  router_state_ = RouterState(options_.transformer.moe, names, setup_.device, setup_.ledger);
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->set_state(router_state_.layer(i));
}

void ModelStage::CountExpertLoad(const Tensor& load_L2E) {
  router_state_.CountLoad(load_L2E);
  for (size_t i = 0; i < moe_layers_.size(); ++i)
    moe_layers_[i]->set_state(router_state_.layer(static_cast<int64_t>(i)));
}

std::unique_ptr<VocabParallelEmbedding> ModelStage::MakeTable(const std::string& name,
                                                              float init_std) const {
  auto table = std::make_unique<VocabParallelEmbedding>(
      name, options_.padded_vocab_size, options_.transformer.hidden_size, init_std,
      setup_.layer_group(), options_.transformer.grid);
  table->weight().is_embedding_or_output = true;
  return table;
}

void ModelStage::MakeEmbedding() {
  const StagePlacement& placement = setup_.placement;
  const bool predicts_words = options_.num_classes == 0;
  const std::vector<int> with_words = placement.StagesWithWords(
      predicts_words && options_.tied_embeddings, predicts_words && options_.mtp_num_layers > 0);
  if (absl::c_linear_search(with_words, placement.stage)) {
    word_embeddings_ = MakeTable("embedding.word_embeddings.weight", options_.embedding_init_std);
    word_embeddings_->weight().tied = with_words.size() > 1;
    word_embeddings_->weight().owner = placement.first();
  }
  if (placement.first())
    embedding_ = std::make_unique<TokenEmbedding>(options_, word_embeddings_.get());
}

void ModelStage::MakeHead() {
  if (options_.num_classes > 0) {
    classifier_ = std::make_unique<SequenceClassifier>(options_, measures_);
  } else {
    MakeLmHead();
  }
  const Shape sums{static_cast<int64_t>(measures_.size()), 2};
  loss_buffer_ =
      Buffer(setup_.device, sums.numel() * SizeOf(DType::kFloat32), "loss", setup_.ledger);
  loss_sums_ = loss_buffer_.At(0, DType::kFloat32, sums);
}

void ModelStage::MakeLmHead() {
  if (!options_.tied_embeddings) {
    output_layer_ = MakeTable("output_layer.weight", options_.transformer.init_std);
    if (const TensorGrid& grid = options_.transformer.grid; grid.is_grid()) {
      Sharding& sharding = output_layer_->weight().sharding;
      sharding = SplitOutputMatrix(sharding.global_shape, grid);
    }
  }
  // Multi-token prediction goes back after the head, and looks up words.
  const bool used_later = options_.tied_embeddings && has_mtp();
  head_ = std::make_unique<LmHead>(options_, measures_, setup_.layer_group(), output_matrix(),
                                   used_later);
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
  if (classifier_ != nullptr) classifier_->AppendParameters(&all);
  if (output_layer_ != nullptr) AppendBlock({&output_layer_->weight()}, &all);
  return all;
}

void ModelStage::StartStep(const StepInputs& inputs) {
  step_ = inputs;
  CHECK_EQ(static_cast<int>(inputs.memory->slots.size()), setup_.placement.chunks);
  SetSlots(inputs.memory->slots);
}

// What is computed of a token must not depend on which tokens are computed with it: neither on the
// largest of their activations, as FP8's scales, nor on which experts they choose.
bool ModelStage::TakesCache() const {
  const TransformerOptions& transformer = options_.transformer;
  return options_.kind == ModelKind::kGpt && !transformer.float8.enabled &&
         !transformer.moe.capacity_factor.has_value() && !transformer.grid.is_grid() &&
         transformer.recompute.attention_chunk_tokens == 0;
}

std::vector<int64_t> ModelStage::Layers() const {
  std::vector<int64_t> layers;
  for (int chunk = 0; chunk < setup_.placement.chunks; ++chunk) {
    const Part part = PartOf(chunk);
    for (int64_t layer = part.begin; layer < part.end; ++layer) layers.push_back(layer);
  }
  return layers;
}

KvCache ModelStage::MakeCache(int64_t slots, int64_t capacity, const Stream& stream,
                              MemoryLedger* ledger) const {
  CHECK(TakesCache());
  const TransformerOptions& transformer = options_.transformer;
  KvCacheOptions cache;
  for (const int64_t layer : Layers())
    if (transformer.HasAttention(layer)) cache.layers.push_back(layer);
  cache.slots = slots;
  cache.capacity = capacity;
  if (transformer.is_latent() && transformer.latent.caches_latents) {
    cache.groups = 1;
    cache.key_size = transformer.latent.kv_rank + transformer.latent.rotated_size;
  } else {
    cache.groups = std::max<int64_t>(1, transformer.num_query_groups / setup_.layer_group().size());
    cache.key_size = transformer.kv_channels;
    cache.value_size = transformer.value_size();
  }
  cache.dtype = transformer.dtype;
  return KvCache(cache, stream, ledger);
}

StateCache ModelStage::MakeStates(int64_t slots, const Stream& stream, MemoryLedger* ledger) const {
  const TransformerOptions& transformer = options_.transformer;
  const int ranks = setup_.layer_group().size();
  StateCacheOptions cache;
  cache.slots = slots;
  cache.dtype = transformer.dtype;
  for (const int64_t layer : Layers()) {
    if (transformer.HasAttention(layer) || transformer.HasMlp(layer)) continue;
    cache.layers.push_back({layer, transformer.hybrid_layers[layer] == HybridLayer::kMamba
                                       ? MambaMixer::ShapesOf(transformer, ranks)
                                       : GatedDeltaNet::ShapesOf(transformer, ranks)});
  }
  return StateCache(cache, stream, ledger);
}

ActivationStore::Slot* ModelStage::OffloadOf(const WorkItem& item) const {
  const auto& store = step_.memory->store;
  return store == nullptr ? nullptr : store->At(item.chunk, item.slot);
}

// A text may have any number of tokens while it grows: they are not shared out.
bool ModelStage::sequence_parallel() const {
  return options_.transformer.sequence_parallel && setup_.tensor_group.size() > 1 &&
         step_.mode != StageMode::kPredict;
}

LayerContext ModelStage::Context(const WorkItem& item, const Stream& stream) const {
  StageMemory& memory = *step_.memory;
  LayerContext ctx = {setup_.layer_group(), stream};
  if (options_.transformer.grid.is_grid()) {
    ctx.grid = setup_.tensor_grid;
    ctx.first_column = options_.transformer.grid.column * HiddenColumns();
  }
  CHECK_LT(item.slot, static_cast<int>(memory.slots[item.chunk].size()));
  ctx.saved = memory.slots[item.chunk][item.slot].get();
  ctx.scratch = &memory.scratch;
  ctx.recompute = &memory.recompute;
  ctx.host_copies = memory.host_copies.get();
  if (item.deferred_slot >= 0) {
    CHECK_LT(item.deferred_slot, static_cast<int>(memory.deferred[item.chunk].size()));
    ctx.deferred = memory.deferred[item.chunk][item.deferred_slot].get();
  }
  ctx.batch = &batch(item.microbatch);
  if (step_.inner_batches != nullptr) ctx.inner = &(*step_.inner_batches)[item.microbatch];
  ctx.seed = options_.dropout_seed;
  ctx.training = training();
  ctx.sequence_parallel = sequence_parallel();
  ctx.blocks = step_.blocks;
  if (training()) ctx.activations = step_.activations;
  if (training()) ctx.largest_scores_LN = step_.largest_scores_LN;
  if (training()) ctx.kept_tokens = step_.kept_tokens;
  if (step_.mode != StageMode::kPredict) ctx.context_group = setup_.context_group;
  ctx.cached = step_.cached;
  return ctx;
}

int64_t ModelStage::HiddenColumns() const {
  return options_.transformer.grid.PartOf(options_.transformer.hidden_size);
}

TensorSpec ModelStage::HiddenSpec(int64_t tokens) const {
  const int64_t ranks = sequence_parallel() ? setup_.tensor_group.size() : 1;
  return {options_.transformer.dtype, {tokens / ranks, HiddenColumns()}};
}

Tensor ModelStage::AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const {
  return arena->Allocate(options_.transformer.dtype, {ctx.rows(), HiddenColumns()}, name);
}

void ModelStage::RunLayers(const LayerStack& stack, const LayerContext& ctx,
                           const RotaryTables* rotary, const Tensor& x_TH, const Tensor& y_TH,
                           LayerStack::Saved* saved, ActivationStore::Slot* offload) const {
  if (!training()) return stack.ForwardOnly(ctx, rotary, x_TH, y_TH, offload);
  saved->offload = offload;
  stack.Forward(ctx, rotary, x_TH, y_TH, saved);
}

void ModelStage::RunHead(const LayerContext& ctx, const Tensor& y_TH, HeadSaved* saved) const {
  if (classifier_ != nullptr) {
    const Tensor losses_T = training() ? step_.token_losses_T : Tensor();
    if (has_loss()) classifier_->Forward(ctx, y_TH, loss_sums_, &saved->classifier, losses_T);
    return;
  }
  if (step_.mode != StageMode::kPredict) {
    LmHead::TokenScores scores;
    if (step_.token_scores_M2T && !training()) {
      const Tensor scores_2T = step_.token_scores_M2T.Select(0, ctx.batch - step_.batches->data());
      scores = {scores_2T.Select(0, 0), scores_2T.Select(0, 1)};
    }
    if (step_.token_losses_T && training())
      scores.loss_T = step_.token_losses_T.Slice(0, 0, ctx.batch->num_tokens());
    return head_->Forward(ctx, y_TH, loss_sums_, saved, scores);
  }
  if (step_.predicted_P) head_->Predict(ctx, y_TH, step_.predicted_P, step_.predicted_logits_PV);
}

void ModelStage::RunHeadBack(const LayerContext& ctx, const Tensor& dy_TH, HeadSaved* saved) const {
  if (classifier_ != nullptr) return classifier_->Backward(ctx, dy_TH, saved->classifier);
  head_->Backward(ctx, dy_TH, saved);
}

void ModelStage::RunHeadBackWeight(const LayerContext& ctx, const HeadSaved& saved) const {
  if (head_ != nullptr) head_->BackwardWeight(ctx, saved);
}

}  // namespace megatron
