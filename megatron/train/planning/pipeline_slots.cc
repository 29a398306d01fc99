#include "megatron/train/planning/pipeline_slots.h"

#include <algorithm>
#include <functional>

#include "megatron/models/first_trained_part.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/pipeline/zero_bubble_v.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

// An interleaved schedule has as many micro-batches in flight with this many rounds as with more.
constexpr int64_t kRounds = 3;
constexpr int64_t kRoundsOfUnequalStages = 32;
// A result is written to one of so many messages while the other is sent (pipeline/executor.cc).
constexpr double kOutgoing = 2;

bool HasEqualLayers(config::PretrainConfig config) {
  ResolveDefaults(&config);
  const config::ModelConfig& model = config.model();
  if (model.model_type() == config::ModelType::t5 || model.has_hybrid_layer_pattern() ||
      config.optimizer().freeze_size() > 0)
    return false;
  if (!model.has_num_experts()) return true;
  const auto is_mixture = ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
  return !is_mixture.ok() || std::adjacent_find(is_mixture->begin(), is_mixture->end(),
                                                std::not_equal_to<>()) == is_mixture->end();
}

}  // namespace

void SetMicroBatches(int64_t count, config::PretrainConfig* config) {
  config::TrainConfig* const train = config->mutable_train();
  train->clear_rampup_batch_size();
  train->clear_step_batch_size_schedule();
  train->set_global_batch_size(count * train->micro_batch_size() *
                               config->parallel().data_parallel_size());
}

PipelineSlots::PipelineSlots(const config::PretrainConfig& config, int64_t vocab_size, bool is_gpu)
    : config_(config),
      vocab_size_(vocab_size),
      is_gpu_(is_gpu),
      element_bytes_(config.precision().bf16() || config.precision().fp16() ? 2 : 4),
      has_equal_layers_(HasEqualLayers(config)) {}

// The executor holds a tensor for each message that a stage has received and not yet used.
std::map<int64_t, PipelineSlots::Stage> PipelineSlots::Plan(const config::PretrainConfig& config,
                                                            bool all_stages) const {
  const TrainerOptions options = ToRunOptions(config, vocab_size_).trainer;
  ScheduleOptions schedule;
  schedule.kind = options.pipeline_schedule;
  schedule.stages = options.placement.stages;
  schedule.chunks = options.placement.chunks;
  schedule.microbatches = static_cast<int>(options.packing.max_micro_batches);
  schedule.group = options.microbatch_group;
  schedule.costs = options.action_costs.Mean();
  if (const auto frozen = NamePatterns::Create(options.freeze);
      frozen.ok() && !options.freeze.empty()) {
    schedule.first_trained = FirstTrainedPart(options.model, options.placement, *frozen);
  }
  const SampleLengths lengths = ModelRulesOf(config.model()).LengthsOf(config.model());
  const double message = double(lengths.seq_length + lengths.encoder_seq_length) *
                         double(config.model().hidden_size()) * element_bytes_;
  std::map<int64_t, Stage> slots;
  for (const bool trains : {true, false}) {
    const Schedule actions = trains ? MakeSchedule(schedule) : MakeForwards(schedule);
    for (int stage = 0; stage < schedule.stages; ++stage) {
      if (stage > 1 && stage + 1 < schedule.stages && !all_stages) continue;
      const StagePlan plan = PlanStage(actions, stage, options.action_costs);
      Stage& of_stage = slots[stage];
      of_stage.counts.resize(plan.chunks());
      of_stage.deferred.resize(plan.chunks());
      double messages = schedule.stages > 1 ? kOutgoing : 0;
      for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
        of_stage.counts[chunk] = std::max<double>(of_stage.counts[chunk], plan.slots[chunk]);
        of_stage.deferred[chunk] =
            std::max<double>(of_stage.deferred[chunk], plan.deferred_slots[chunk]);
        if (plan.has_input(chunk)) messages += plan.input_slots[chunk];
        if (plan.has_output(chunk)) messages += plan.gradient_slots[chunk];
      }
      of_stage.edges = std::max(of_stage.edges, messages * message);
    }
  }
  return slots;
}

bool PipelineSlots::HasEqualStages(const LayoutAxes& axes) const {
  return !axes.ends_count && axes.last_layers == 0 && has_equal_layers_;
}

// Before a slow stage messages pile up as long as the step goes on. A V has no rounds.
int64_t PipelineSlots::Enough(const LayoutAxes& axes, int64_t micro_batches) const {
  if (axes.schedule == PlanSchedule::kGPipe) return micro_batches;
  const bool has_rounds = HasEqualStages(axes) && axes.schedule != PlanSchedule::kZeroBubbleV;
  const int64_t rounds = has_rounds ? kRounds : kRoundsOfUnequalStages;
  int64_t enough = rounds * axes.pipeline;
  // A large V has another order than a small one.
  if (axes.schedule == PlanSchedule::kZeroBubbleV &&
      axes.pipeline * micro_batches > kMostCellsOfZeroBubbleV)
    enough = std::max(enough, kMostCellsOfZeroBubbleV / axes.pipeline + 1);
  return std::min(micro_batches, enough);
}

const std::map<int64_t, PipelineSlots::Stage>& PipelineSlots::Of(const LayoutAxes& axes,
                                                                 int64_t micro_batches) {
  const int64_t enough = Enough(axes, micro_batches);
  const std::array<int64_t, 7> key = {
      axes.pipeline,          axes.chunks, axes.last_layers,       axes.encoder_stages,
      int64_t(axes.schedule), enough,      int64_t(axes.recompute)};
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second;
  LayoutAxes simple;
  simple.pipeline = axes.pipeline;
  simple.chunks = axes.chunks;
  simple.schedule = axes.schedule;
  simple.ends_count = axes.ends_count;
  simple.last_layers = axes.last_layers;
  simple.encoder_stages = axes.encoder_stages;
  simple.recompute = axes.recompute;
  config::PretrainConfig config = config_;
  ApplyLayout(simple, is_gpu_, &config);
  SetMicroBatches(enough, &config);
  ResolveDefaults(&config);
  // The inner stages of a V hold different numbers of micro-batches.
  const bool are_unequal = !HasEqualStages(axes) || axes.schedule == PlanSchedule::kZeroBubbleV;
  return schedules_[key] = Plan(config, are_unequal);
}

}  // namespace megatron
