#include "megatron/train/planning/memory_estimate.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/hierarchical/hierarchical_communicator.h"
#include "megatron/models/activation_store.h"
#include "megatron/optim/rules/make_update_rule.h"
#include "megatron/plan/collective_time.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

// With three stages and as many micro-batches every place of a pipeline is there.
constexpr int64_t kProbedStages = 3;
// Stages of up to so many layers are planned as they are; the memory of larger ones is linear.
constexpr int64_t kFewLayers = 3;
constexpr int64_t kManyLayers = 24;
// Layers that are offloaded share as many windows as there are (models/activation_store.h), at most
// so many; a window is as large as what a layer keeps.
constexpr int64_t kMostWindows = OffloadSizes::kMostWindows;

// Elements that the optimizer takes at once where some lie on the host (optim/optimizer.cc):
// gradients and weights of two such pieces are in page-locked memory, and the norm of main weights
// takes one of them on the device.
constexpr double kPieceElements = 1 << 20;
// Elements of an extent of a file of states, of which host memory holds several
// (optim/state_file.h).
constexpr double kExtentElements = 1 << 20;
constexpr double kExtents = 3;
// Elements of which the norm of gradients that are in host memory or in bf16 is taken at once.
constexpr double kGradientElements = 1 << 22;
// Elements that gradients in bf16 become in fp32 at once for an update on the host.
constexpr double kCachedElements = 1 << 16;

// Returns the layers of each part of the model, in its order.
std::vector<int64_t> LayersOfParts(const LayoutAxes& axes, int64_t layers) {
  const PartSizes parts = SizesOfParts(axes, layers);
  std::vector<int64_t> sizes(axes.pipeline * axes.chunks, parts.inner);
  sizes.front() = parts.first;
  sizes.back() = parts.last;
  return sizes;
}

bool IsV(const LayoutAxes& axes) { return axes.schedule == PlanSchedule::kZeroBubbleV; }

void SetLayers(int64_t layers, bool is_mixture, config::PretrainConfig* config) {
  config::ModelConfig* const model = config->mutable_model();
  model->set_num_layers(layers);
  // All layers have the memory of one with a window and with rotations.
  model->clear_window_attn_skip_freq();
  model->clear_no_rope_freq();
  if (model->has_num_experts())
    model->set_moe_layer_freq(is_mixture ? "1" : absl::StrCat("[0]*", layers));
  // All of them are offloaded, or none is.
  if (config->recompute().cpu_offloading_num_layers() > 0)
    config->mutable_recompute()->set_cpu_offloading_num_layers(layers);
}

// Returns the fewest data-parallel ranks that the experts can lie on.
int64_t LeastData(const LayoutAxes& axes) {
  const int64_t experts = axes.expert * axes.expert_tensor;
  return experts / std::gcd(experts, axes.tensor * axes.context);
}

config::PretrainConfig ForDevice(config::PretrainConfig config, bool is_gpu) {
  SetPlannedDevice(is_gpu, &config);
  return config;
}

// Returns the ranks of a host that rows of tokens go to once, on which what a layer saves depends.
int64_t DispatchHost(const LayoutAxes& axes) {
  return axes.deduplicates_dispatch ? axes.ranks_per_host : 0;
}

void ClearForms(LayoutAxes* axes) {
  axes->ranks_per_host = DispatchHost(*axes);
  axes->hosts = 1;
  axes->data_is_outermost = false;
  axes->quantizes_weights = axes->quantizes_gradients = false;
}

// Returns the scratch memory of hierarchical collectives: each group that has several ranks on each
// of several hosts has some.
double HierarchicalBytes(const LayoutAxes& axes, bool has_experts) {
  if (axes.ranks_per_host == 0) return 0;
  const auto bytes = [&](PlanGroup group) {
    const int64_t on_host = RanksInDomain(group, axes.ranks_per_host);
    const bool has_levels = on_host > 1 && on_host < group.ranks;
    return has_levels ? double(HierarchicalScratchBytes(int(axes.ranks_per_host))) : 0;
  };
  const auto of_instances = [&](PlanGroup group) {
    const PlanGroup part{std::max<int64_t>(1, group.ranks / axes.instances), group.stride};
    return bytes(part) + bytes({axes.instances, part.stride * part.ranks});
  };
  const int64_t copies = axes.data * axes.context, cut = axes.expert * axes.expert_tensor;
  const double dense = of_instances({copies, axes.tensor});
  return has_experts ? dense + of_instances({copies * axes.tensor / cut, cut}) : dense;
}

double Take(const std::string& name, std::map<std::string, int64_t>* memory) {
  const auto found = memory->find(name);
  if (found == memory->end()) return 0;
  const double bytes = double(found->second);
  memory->erase(found);
  return bytes;
}

}  // namespace

MemoryEstimator::MemoryEstimator(const config::PretrainConfig& config, int64_t vocab_size,
                                 bool is_gpu)
    : config_(ForDevice(config, is_gpu)),
      resolved_(config_),
      vocab_size_(vocab_size),
      is_gpu_(is_gpu),
      slots_(config_, vocab_size, is_gpu) {
  ResolveDefaults(&resolved_);
  is_mixture_.assign(resolved_.model().num_layers(), resolved_.model().has_num_experts());
  if (resolved_.model().has_num_experts()) {
    const auto pattern =
        ParseLayerPattern(resolved_.model().moe_layer_freq(), resolved_.model().num_layers());
    if (pattern.ok()) is_mixture_ = *pattern;
  }
  has_encoder_ = resolved_.model().model_type() == config::ModelType::t5;
  freezes_ = resolved_.optimizer().freeze_size() > 0;
  is_hybrid_ = resolved_.model().has_hybrid_layer_pattern();
  if (config.precision().bf16() || config.precision().fp16()) weight_bytes_ = 2;
  rounds_gradients_ = config.optimizer().main_grads_dtype() != config::MainGradsDtype::fp32;
}

absl::StatusOr<MemoryEstimator::Places> MemoryEstimator::PlanPlaces(LayoutAxes axes,
                                                                    bool is_mixture,
                                                                    int64_t layers) const {
  axes.pipeline = axes.pipeline > 1 ? kProbedStages : 1;
  axes.chunks = 1;
  axes.ends_count = false;
  axes.last_layers = 0;
  axes.data = LeastData(axes);
  axes.shared_out = SharedOut::kNothing;
  axes.host_fraction = 0;
  axes.states_in_files = false;
  axes.weights_on_host = false;
  ClearForms(&axes);
  config::PretrainConfig config = config_;
  ApplyLayout(axes, is_gpu_, &config);
  SetLayers(layers * axes.pipeline, is_mixture, &config);
  // More micro-batches than stages: what a pass leaves for the next one is seen, too. Stages of
  // many layers only tell what a layer adds.
  const bool has_many = axes.pipeline > 1 && layers > kFewLayers;
  const int64_t micro_batches = has_many ? axes.pipeline : 2 * axes.pipeline;
  SetMicroBatches(micro_batches, &config);
  ResolveDefaults(&config);
  Places places;
  for (int64_t stage = 0; stage < axes.pipeline; ++stage) {
    MEGATRON_ASSIGN_OR_RETURN(const PlannedStage planned,
                              PlanStageAsItIs(config, micro_batches, stage));
    places.push_back(planned.bytes);
    for (double StageBytes::*member :
         {&StageBytes::saved, &StageBytes::deferred, &StageBytes::host_saved}) {
      places.back().*member = planned.parts.front().*member;
    }
  }
  return places;
}

absl::StatusOr<MemoryEstimator::PlannedStage> MemoryEstimator::PlanStageAsItIs(
    const config::PretrainConfig& config, int64_t micro_batches, int64_t stage) const {
  const RunOptions options = ToRunOptions(config, vocab_size_);
  std::set<std::string> states = {"master weights"};
  for (const OptimizerState& state : MakeUpdateRule(options.trainer.optimizer)->states())
    states.insert(state.name);
  MEGATRON_ASSIGN_OR_RETURN(RankPlan plan, PlanStageOfRun(options, int(stage)));
  PlannedStage planned;
  StageBytes& bytes = planned.bytes;
  bytes.weights = Take("weights", &plan.memory);
  bytes.gradients = Take("gradients", &plan.memory);
  bytes.batches = Take("batches", &plan.memory) / double(micro_batches);
  for (const std::string& state : states) bytes.optimizer += Take(state, &plan.memory);
  // It does not grow with the layers: StageTotal adds it.
  if (rounds_gradients_) Take("optimizer statistics", &plan.memory);
  Take("hierarchical collectives", &plan.memory);  // StageTotal adds what the whole layout has
  bytes.temporary = double(plan.sizes.recompute + plan.sizes.scratch);
  bytes.window = double(plan.sizes.offload.window);
  bytes.host_temporary = double(plan.sizes.host_recompute + plan.sizes.host_scratch);
  // "batches/graphs" stays: micro-batches in flight are few, and the batch is small.
  for (const auto& [name, held] : plan.memory) bytes.fixed += double(held);
  bytes.fixed -= double(plan.sizes.total() - plan.sizes.graph_inputs);
  for (size_t chunk = 0; chunk < plan.sizes.slots.size(); ++chunk) {
    StageBytes part;
    part.saved = double(plan.sizes.slots[chunk].bytes);
    part.deferred = double(plan.sizes.deferred[chunk].bytes);
    part.host_saved = double(plan.sizes.slots[chunk].host +
                             plan.sizes.offload.BytesOfSlot(static_cast<int>(chunk)));
    planned.parts.push_back(part);
  }
  return planned;
}

absl::StatusOr<const MemoryEstimator::PlannedStage*> MemoryEstimator::StageOf(LayoutAxes axes,
                                                                              int64_t stage) {
  const std::array<int64_t, 21> key = {axes.tensor,
                                       axes.grid.depth,
                                       axes.grid.is_grid() + axes.grid.is_cube,
                                       axes.context,
                                       axes.pipeline,
                                       axes.chunks,
                                       axes.last_layers,
                                       static_cast<int64_t>(axes.schedule),
                                       axes.ends_count,
                                       axes.encoder_stages,
                                       axes.expert,
                                       axes.expert_tensor,
                                       axes.micro_batch,
                                       axes.is_sequence_parallel,
                                       static_cast<int64_t>(axes.context_form),
                                       axes.context_team,
                                       static_cast<int64_t>(axes.recompute),
                                       DispatchHost(axes),
                                       axes.activations_on_host,
                                       axes.attention_chunk_on_host,
                                       stage};
  const auto found = stages_.find(key);
  if (found != stages_.end()) return &found->second;
  axes.data = LeastData(axes);
  axes.shared_out = SharedOut::kNothing;
  axes.instances = 1;
  axes.instances_share_states = false;
  axes.host_fraction = 0;
  axes.states_in_files = false;
  axes.weights_on_host = false;
  ClearForms(&axes);
  config::PretrainConfig config = config_;
  ApplyLayout(axes, is_gpu_, &config);
  const int64_t micro_batches = 2 * axes.pipeline;
  SetMicroBatches(micro_batches, &config);
  ResolveDefaults(&config);
  MEGATRON_ASSIGN_OR_RETURN(PlannedStage planned, PlanStageAsItIs(config, micro_batches, stage));
  return &(stages_[key] = std::move(planned));
}

absl::StatusOr<const MemoryEstimator::Places*> MemoryEstimator::ProbeOf(const LayoutAxes& axes,
                                                                        bool is_mixture,
                                                                        int64_t layers) {
  const std::array<int64_t, 18> key = {axes.tensor,
                                       axes.grid.depth,
                                       axes.grid.is_grid() + axes.grid.is_cube,
                                       axes.context,
                                       axes.pipeline > 1,
                                       static_cast<int64_t>(axes.schedule),
                                       axes.expert,
                                       axes.expert_tensor,
                                       axes.micro_batch,
                                       axes.is_sequence_parallel,
                                       static_cast<int64_t>(axes.context_form),
                                       axes.context_team,
                                       static_cast<int64_t>(axes.recompute),
                                       DispatchHost(axes),
                                       axes.activations_on_host,
                                       axes.attention_chunk_on_host,
                                       is_mixture,
                                       layers};
  const auto found = probes_.find(key);
  if (found != probes_.end()) return &found->second;
  MEGATRON_ASSIGN_OR_RETURN(Places places, PlanPlaces(axes, is_mixture, layers));
  return &(probes_[key] = std::move(places));
}

absl::StatusOr<MemoryEstimator::StageBytes> MemoryEstimator::LayersOf(const LayoutAxes& axes,
                                                                      bool is_mixture, size_t place,
                                                                      int64_t layers,
                                                                      bool with_ends) {
  // Layers that are recomputed keep little, and evaluation hides how much few of them keep.
  // What one more layer takes on the host is seen where all windows are there, and between plans of
  // as many micro-batches.
  const int64_t few =
      axes.activations_on_host ? std::max(kMostWindows, kFewLayers) + 2 : kFewLayers;
  const int64_t many = axes.recompute == PlanRecompute::kFull ? kManyLayers : few;
  MEGATRON_ASSIGN_OR_RETURN(const Places* const before, ProbeOf(axes, is_mixture, many - 1));
  MEGATRON_ASSIGN_OR_RETURN(const Places* const after, ProbeOf(axes, is_mixture, many));
  StageBytes bytes = (*after)[place];
  for (double StageBytes::*member :
       {&StageBytes::weights, &StageBytes::gradients, &StageBytes::optimizer, &StageBytes::fixed,
        &StageBytes::saved, &StageBytes::deferred, &StageBytes::host_saved}) {
    const double layer = (*after)[place].*member - (*before)[place].*member;
    bytes.*member = with_ends ? (*after)[place].*member + double(layers - many) * layer
                              : double(layers) * layer;
  }
  return bytes;
}

absl::StatusOr<MemoryEstimator::StageBytes> MemoryEstimator::BothKinds(const LayoutAxes& axes,
                                                                       size_t place,
                                                                       int64_t mixtures,
                                                                       int64_t dense,
                                                                       bool begins_with_mixture) {
  const bool is_mixed = mixtures > 0 && dense > 0;
  const Places* few = nullptr;
  if (!is_mixed && mixtures + dense <= kFewLayers) {
    MEGATRON_ASSIGN_OR_RETURN(few, ProbeOf(axes, mixtures > 0, mixtures + dense));
    return (*few)[place];
  }
  MEGATRON_ASSIGN_OR_RETURN(StageBytes bytes,
                            LayersOf(axes, begins_with_mixture, place,
                                     begins_with_mixture ? mixtures : dense, /*with_ends=*/true));
  if (is_mixed) {
    MEGATRON_ASSIGN_OR_RETURN(
        const StageBytes more,
        LayersOf(axes, !begins_with_mixture, place, begins_with_mixture ? dense : mixtures,
                 /*with_ends=*/false));
    for (double StageBytes::*part :
         {&StageBytes::weights, &StageBytes::gradients, &StageBytes::optimizer, &StageBytes::fixed,
          &StageBytes::saved, &StageBytes::deferred, &StageBytes::host_saved}) {
      bytes.*part += more.*part;
    }
    bytes.temporary = std::max(bytes.temporary, more.temporary);
    bytes.window = std::max(bytes.window, more.window);
    bytes.host_temporary = std::max(bytes.host_temporary, more.host_temporary);
  }
  if (axes.recompute != PlanRecompute::kFull && !axes.activations_on_host) return bytes;
  // Evaluation keeps a layer's activations, which may be more than the inputs of all layers, or of
  // the first. A stage of that layer alone keeps no more than this one where it trains.
  for (const bool is_mixture : {false, true}) {
    if ((is_mixture ? mixtures : dense) == 0) continue;
    MEGATRON_ASSIGN_OR_RETURN(few, ProbeOf(axes, is_mixture, 1));
    bytes.saved = std::max(bytes.saved, (*few)[place].saved);
    bytes.host_saved = std::max(bytes.host_saved, (*few)[place].host_saved);
  }
  return bytes;
}

// Blocks of layers take turns in a pool, whose size depends on their order: all layers are planned.
absl::StatusOr<MemoryEstimator::Whole> MemoryEstimator::WholeBytes(const LayoutAxes& axes,
                                                                   int64_t stage) {
  const int64_t of_rank = resolved_.train().global_batch_size() / (axes.micro_batch * axes.data);
  // Blocks of layers that differ find other places in the pool from one micro-batch to the next,
  // the last time in the third. In the second round blocks of several chunks are at work at once.
  int64_t micro_batches = 2;
  if (axes.chunks > 1) {
    micro_batches = 2 * axes.pipeline;
  } else if (!slots_.has_equal_layers() && of_rank > 2) {
    micro_batches = 3;
  }
  if (IsV(axes)) micro_batches = slots_.Enough(axes, of_rank);
  const bool is_alone = axes.data * axes.context == 1;  // with weights on the host
  const std::array<int64_t, 19> key = {axes.tensor,
                                       axes.grid.depth,
                                       axes.grid.is_grid() + axes.grid.is_cube,
                                       axes.context,
                                       axes.pipeline,
                                       axes.chunks,
                                       axes.last_layers,
                                       axes.encoder_stages,
                                       int64_t(axes.schedule),
                                       axes.expert,
                                       axes.expert_tensor,
                                       int64_t(axes.shared_out),
                                       axes.quantizes_weights,
                                       axes.quantizes_gradients,
                                       is_alone,
                                       axes.weights_on_host,
                                       micro_batches,
                                       IsV(axes) ? int64_t(axes.recompute) : 0,
                                       stage};
  const auto found = whole_.find(key);
  if (found != whole_.end()) return found->second;
  LayoutAxes simple = axes;
  simple.micro_batch = axes.grid.samples();
  // The order of a V's passes depends on what they take.
  if (!IsV(axes)) simple.recompute = PlanRecompute::kNone;
  if (!is_alone) simple.data = 2 * LeastData(axes);
  simple.instances = 1;  // so few ranks may be fewer than the instances
  simple.instances_share_states = false;
  simple.host_fraction = axes.weights_on_host ? 1 : 0;
  simple.states_in_files = false;
  simple.activations_on_host = false;
  simple.attention_chunk_on_host = 0;
  simple.data_is_outermost = false;
  simple.ranks_per_host = 0;  // messages stay
  simple.deduplicates_dispatch = false;
  simple.hosts = 1;
  config::PretrainConfig config = config_;
  ApplyLayout(simple, is_gpu_, &config);
  // Compression needs whole gradients, or several instances, and blocks are the same without it.
  // Layouts that can't have it are refused when they are planned as a whole.
  if (simple.shared_out > SharedOut::kOptimizer || simple.quantizes_gradients)
    config.clear_gradient_compression();
  SetMicroBatches(micro_batches, &config);
  ResolveDefaults(&config);
  MEGATRON_ASSIGN_OR_RETURN(RankPlan plan,
                            PlanStageOfRun(ToRunOptions(config, vocab_size_), int(stage)));
  Whole whole;
  whole.blocks = double(plan.sizes.whole_weights + plan.sizes.whole_gradients) +
                 Take("weights/messages", &plan.memory) + Take("gradients/messages", &plan.memory);
  whole.sums = Take("gradients/sum", &plan.memory) * double(simple.data * simple.context);
  whole_[key] = whole;
  return whole;
}

double MemoryEstimator::ExpertShare(const LayoutAxes& axes, int64_t mixtures,
                                    double weight_bytes) const {
  if (mixtures == 0) return 0;
  const config::ModelConfig& model = resolved_.model();
  const double matrices = model.swiglu() || model.gated_linear_unit() ? 3 : 2;
  const double parameters = matrices * double(model.hidden_size() * model.moe_ffn_hidden_size()) *
                            double(model.num_experts()) / double(axes.expert * axes.expert_tensor);
  return double(mixtures) * parameters * weight_bytes_ / weight_bytes;
}

absl::Status MemoryEstimator::ShareOut(const LayoutAxes& axes, int64_t stage, int64_t mixtures,
                                       StageBytes* bytes) {
  if (axes.shared_out == SharedOut::kNothing) {
    if (!axes.weights_on_host && !rounds_gradients_) return absl::OkStatus();
    MEGATRON_ASSIGN_OR_RETURN(const Whole whole, WholeBytes(axes, stage));
    bytes->fixed += whole.blocks + whole.sums;
    return absl::OkStatus();
  }
  const double experts = ExpertShare(axes, mixtures, bytes->weights);
  const double ranks = double(axes.data * axes.context);
  const double expert_ranks =
      ranks * double(axes.tensor) / double(axes.expert * axes.expert_tensor);
  const double of_all = (1 - experts) / ranks + experts / expert_ranks;
  const double share = of_all * double(axes.instances);
  bytes->optimizer *= axes.instances_share_states ? of_all : share;
  if (axes.shared_out == SharedOut::kOptimizer) {
    if (!rounds_gradients_) return absl::OkStatus();
    MEGATRON_ASSIGN_OR_RETURN(const Whole whole, WholeBytes(axes, stage));
    bytes->fixed += whole.blocks;
    return absl::OkStatus();
  }
  bytes->gradients *= share;
  // The trainer keeps no secondary shards where a host has one rank of those with the same weights.
  const bool has_secondary = axes.hosts > 1 && axes.data * axes.context / axes.hosts > 1;
  if (has_secondary) bytes->fixed += bytes->weights * of_all * double(axes.hosts);
  if (axes.shared_out == SharedOut::kWeights) bytes->weights *= share;
  MEGATRON_ASSIGN_OR_RETURN(const Whole whole, WholeBytes(axes, stage));
  bytes->fixed += whole.blocks + whole.sums * double(axes.instances) / ranks;
  return absl::OkStatus();
}

absl::StatusOr<MemoryEstimator::Held> MemoryEstimator::HeldByStacks(
    const LayoutAxes& axes, int64_t stage, const PipelineSlots::Stage& slots) {
  MEGATRON_ASSIGN_OR_RETURN(const PlannedStage* const planned, StageOf(axes, stage));
  Held held;
  held.bytes = planned->bytes;
  held.window = planned->bytes.window;
  for (size_t chunk = 0; chunk < planned->parts.size(); ++chunk) {
    const StageBytes& part = planned->parts[chunk];
    held.saved += slots.counts[chunk] * part.saved + slots.deferred[chunk] * part.deferred;
    held.host_saved += slots.counts[chunk] * part.host_saved;
  }
  if (has_encoder_) return held;
  const std::vector<int64_t> parts = LayersOfParts(axes, resolved_.model().num_layers());
  for (int64_t chunk = 0; chunk < axes.chunks; ++chunk) {
    // A V's second part of the model comes back to the first stage.
    const bool comes_back = IsV(axes) && chunk == 1;
    const int64_t part =
        comes_back ? int64_t(parts.size()) - 1 - stage : chunk * axes.pipeline + stage;
    const auto begin =
        is_mixture_.begin() + std::accumulate(parts.begin(), parts.begin() + part, int64_t{0});
    held.mixtures += std::count(begin, begin + parts[part], true);
  }
  return held;
}

absl::StatusOr<MemoryEstimator::Held> MemoryEstimator::HeldBytes(
    const LayoutAxes& axes, int64_t stage, const PipelineSlots::Stage& slots) {
  if (has_encoder_ || is_hybrid_ || IsV(axes) || freezes_) return HeldByStacks(axes, stage, slots);
  const size_t place = stage == 0 ? 0 : stage + 1 == axes.pipeline ? 2 : 1;
  const std::vector<int64_t> parts = LayersOfParts(axes, resolved_.model().num_layers());
  Held held;
  int64_t layers = 0;
  bool begins_with_mixture = false;
  for (int64_t chunk = 0; chunk < axes.chunks; ++chunk) {
    const int64_t part = chunk * axes.pipeline + stage;
    const auto begin =
        is_mixture_.begin() + std::accumulate(parts.begin(), parts.begin() + part, int64_t{0});
    const int64_t experts = std::count(begin, begin + parts[part], true);
    if (chunk == 0) begins_with_mixture = parts[part] > 0 && *begin;
    held.mixtures += experts;
    layers += parts[part];
    const size_t place_of_part = part == 0 ? 0 : part + 1 == int64_t(parts.size()) ? 2 : 1;
    MEGATRON_ASSIGN_OR_RETURN(
        const StageBytes kept,
        BothKinds(axes, place_of_part, experts, parts[part] - experts, parts[part] > 0 && *begin));
    held.saved += slots.counts[chunk] * kept.saved + slots.deferred[chunk] * kept.deferred;
    held.host_saved += slots.counts[chunk] * kept.host_saved;
    held.window = std::max(held.window, kept.window);
  }
  MEGATRON_ASSIGN_OR_RETURN(held.bytes, BothKinds(axes, place, held.mixtures,
                                                  layers - held.mixtures, begins_with_mixture));
  return held;
}

absl::StatusOr<MemoryNeeds> MemoryEstimator::StageTotal(const LayoutAxes& axes, int64_t stage,
                                                        const PipelineSlots::Stage& slots) {
  MEGATRON_ASSIGN_OR_RETURN(const Held held, HeldBytes(axes, stage, slots));
  StageBytes bytes = held.bytes;
  // The optimizer takes room for all that a rank has, frozen ones included (step_statistics.cc).
  const double elements = bytes.weights / weight_bytes_;
  const double state_bytes = elements > 0 ? bytes.optimizer / elements : 0;
  MEGATRON_RETURN_IF_ERROR(ShareOut(axes, stage, held.mixtures, &bytes));
  bytes.fixed += HierarchicalBytes(axes, resolved_.model().has_num_experts());
  const double micro_batches =
      double(resolved_.train().global_batch_size()) / double(axes.micro_batch * axes.data);
  // The ranks of a grid have blocks of what stages send each other, too.
  const bool cuts_edges = axes.is_sequence_parallel || axes.grid.is_grid();
  const double rows =
      double(axes.micro_batch) / double(axes.context) / double(cuts_edges ? axes.tensor : 1);
  MemoryNeeds needs;
  needs.host = held.host_saved + bytes.host_temporary;
  if (axes.activations_on_host) {
    const std::vector<int64_t> parts = LayersOfParts(axes, resolved_.model().num_layers());
    int64_t windows = 0;
    for (int64_t chunk = 0; chunk < axes.chunks; ++chunk)
      windows = std::max(windows, std::min(kMostWindows, parts[chunk * axes.pipeline + stage]));
    bytes.fixed += double(windows) * held.window;
  }
  double moved = axes.host_fraction * bytes.optimizer;
  if (axes.states_in_files) {
    needs.files = moved;
    needs.host += kExtents * std::min(kExtentElements * state_bytes, moved);
  }
  const bool copies_gradients = axes.weights_on_host || rounds_gradients_;
  if (copies_gradients) bytes.fixed += 4 * std::min(kGradientElements, elements);
  if (axes.weights_on_host) {
    moved += bytes.weights + bytes.gradients;
    needs.host += moved - needs.files;
    if (rounds_gradients_) bytes.fixed += 2 * std::min(kPieceElements, elements);
  } else if (moved > 0) {
    needs.host +=
        moved - needs.files + 2 * kPieceElements * ((rounds_gradients_ ? 2 : 4) + weight_bytes_);
    if (weight_bytes_ < 4 && !copies_gradients)
      bytes.fixed += 4 * std::min(kPieceElements, elements);
  }
  if (rounds_gradients_ && moved > 0) needs.host += 4 * kCachedElements;
  needs.device = bytes.weights + bytes.gradients + bytes.optimizer - moved + bytes.fixed +
                 held.saved + bytes.temporary + slots.edges * rows + bytes.batches * micro_batches;
  return needs;
}

absl::StatusOr<MemoryNeeds> MemoryEstimator::Bytes(const LayoutAxes& axes) {
  const int64_t micro_batches =
      resolved_.train().global_batch_size() / (axes.micro_batch * axes.data);
  MemoryNeeds most;
  for (const auto& [stage, slots] : slots_.Of(axes, micro_batches)) {
    MEGATRON_ASSIGN_OR_RETURN(const MemoryNeeds bytes, StageTotal(axes, stage, slots));
    most.device = std::max(most.device, bytes.device);
    most.host = std::max(most.host, bytes.host);
    most.files = std::max(most.files, bytes.files);
  }
  return most;
}

}  // namespace megatron
