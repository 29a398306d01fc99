#include "megatron/train/planning/layout_predictor.h"

#include <utility>

#include "megatron/base/status_macros.h"
#include "megatron/plan/expert_dispatch.h"

namespace megatron {
namespace {

// Communication in two levels, or in codes, is taken where it saves this share of a step or more.
constexpr double kLeastSaved = 0.01;

}  // namespace

LayoutPredictor::LayoutPredictor(const Planner& planner, PlannedRun run, bool overlaps)
    : planner_(planner),
      run_(std::move(run)),
      written_chunk_(run_.layout.attention_chunk),
      written_chunks_on_host_(run_.layout.attention_chunks_on_host),
      overlaps_(overlaps) {}

bool LayoutPredictor::WaitsForForms(const StepPrediction& prediction) {
  const StepSeconds& seconds = prediction.seconds;
  return seconds.data_parallel + seconds.expert_parallel >= kLeastSaved * seconds.total;
}

void LayoutPredictor::Set(const LayoutAxes& axes, int64_t samples) {
  PlanLayout& layout = run_.layout;
  layout.tp = axes.tensor;
  layout.grid = axes.grid;
  layout.cp = axes.context;
  layout.context = axes.context_form;
  layout.cp_team = axes.context_team;
  layout.pp = axes.pipeline;
  layout.vpp = axes.chunks;
  layout.schedule = axes.schedule;
  const PartSizes parts = SizesOfParts(axes, run_.model.layers());
  const bool has_equal_parts = !axes.ends_count && axes.last_layers == 0;
  layout.first_layers = has_equal_parts ? PlanLayout::kAsOthers : parts.first;
  layout.last_layers = has_equal_parts ? PlanLayout::kAsOthers : parts.last;
  layout.encoder_stages = axes.encoder_stages;
  layout.data_is_outermost = axes.data_is_outermost;
  layout.dp = axes.data;
  layout.ep = axes.expert;
  layout.etp = axes.expert_tensor;
  layout.micro_batch = axes.micro_batch;
  layout.micro_batches = samples / (axes.micro_batch * axes.data);
  layout.recompute = axes.recompute;
  layout.is_sequence_parallel = axes.is_sequence_parallel;
  layout.host_fraction = axes.host_fraction;
  layout.states_in_files = axes.states_in_files;
  layout.weights_on_host = axes.weights_on_host;
  layout.activations_on_host = axes.activations_on_host;
  const int64_t chunk = axes.attention_chunk_on_host;
  layout.attention_chunk = chunk > 0 ? chunk : written_chunk_;
  layout.attention_chunks_on_host = chunk > 0 || written_chunks_on_host_;
  layout.shards_parameters = axes.shared_out == SharedOut::kWeights;
  layout.shards_gradients = axes.shared_out == SharedOut::kGradients;
  layout.instances = axes.instances;
  layout.shards_states_over_instances = axes.instances_share_states;
  layout.ranks_per_host = axes.ranks_per_host;
  layout.deduplicates_dispatch = axes.deduplicates_dispatch;
  layout.hosts = axes.hosts;
  layout.quantizes_weights = axes.quantizes_weights;
  layout.quantizes_gradients = axes.quantizes_gradients;
  run_.program.set_shards_optimizer(axes.shared_out != SharedOut::kNothing);
  run_.program.set_overlaps_gradients(overlaps_ && axes.data * axes.context > 1);
}

// Ranks that share cores wait longer, by the same factor in all forms.
bool LayoutPredictor::MayPay(const LayoutAxes& plain, const StepPrediction& prediction,
                             const LayoutAxes& form, int64_t samples) {
  const StepSeconds& seconds = prediction.seconds;
  struct Waits {
    double data = 0, experts = 0;
  };
  const auto waits = [&](const LayoutAxes& axes) {
    Set(axes, samples);
    return Waits{
        DataParallelSeconds(*planner_.hardware, run_.program, run_.layout, prediction.data),
        ExpertExchangeSeconds(*planner_.hardware, run_.program, run_.model, run_.layout)};
  };
  const Waits before = waits(plain), after = waits(form);
  const auto saved = [](double waited, double still, double part) {
    return waited > 0 ? (1 - still / waited) * part : 0;
  };
  const double least = kLeastSaved * seconds.total;
  const double of_experts = saved(before.experts, after.experts, seconds.expert_parallel);
  if (form.deduplicates_dispatch && of_experts < least) return false;
  return saved(before.data, after.data, seconds.data_parallel) + of_experts >= least;
}

absl::StatusOr<StepPrediction> LayoutPredictor::Predict(const LayoutAxes& axes, int64_t samples) {
  Set(axes, samples);
  const PlanLayout& layout = run_.layout;
  MEGATRON_ASSIGN_OR_RETURN(
      StepPrediction prediction,
      PredictStep(*planner_.hardware, run_.program, *planner_.kernels, run_.model, layout));
  if (axes.shared_out == SharedOut::kGradients) {
    // The formulas don't know the memory of gradients that are shared out alone: this is a lower
    // bound.
    auto sharing = layout;
    sharing.shards_parameters = true;
    sharing.shards_gradients = false;
    MEGATRON_ASSIGN_OR_RETURN(
        const StepPrediction least,
        PredictStep(*planner_.hardware, run_.program, *planner_.kernels, run_.model, sharing));
    prediction.memory_bytes = least.memory_bytes;
  }
  return prediction;
}

}  // namespace megatron
