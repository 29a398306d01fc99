#include "megatron/train/planning/choose_offload.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/offload_timeline.h"
#include "megatron/models/stage_placement.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/trainer/pipeline_section.h"

namespace megatron {
namespace {

// One micro-batch in each layer of the model, and in the head.
struct LayerSeconds {
  std::vector<SegmentSeconds> layers;
  SegmentSeconds head;
};

SegmentSeconds Difference(const SegmentSeconds& a, const SegmentSeconds& b) {
  return {a.forward - b.forward, a.backward - b.backward};
}

// The last part of the model has the head.
absl::StatusOr<SegmentSeconds> SecondsOfLastPart(const PlannedRun& run, const Hardware& gpu,
                                                 const PlanningFacts& facts,
                                                 const PartLayers& layers) {
  const std::vector<PartLayers> positions(run.layout.pp * run.layout.vpp, layers);
  MEGATRON_ASSIGN_OR_RETURN(
      const PredictedParts parts,
      PredictParts(gpu, run.program, facts.kernels, run.model, run.layout, positions));
  const PartSeconds& last = parts.positions.back();
  return SegmentSeconds{last.forward + last.forward_calls,
                        last.backward_input + last.backward_weight + last.backward_calls};
}

PartLayers OneLayer(const PlannedRun& run, const ModelOptions& model, int64_t layer) {
  const std::string& letters = run.model.hybrid_layers();
  PartLayers part;
  if (!letters.empty()) {
    part.branches = CountBranches(letters.substr(layer, 1));
  } else {
    (model.transformer.moe.IsMoeLayer(layer) ? part.mixtures : part.dense) = 1;
  }
  return part;
}

absl::StatusOr<LayerSeconds> PredictLayers(const PlannedRun& run, const ModelOptions& model,
                                           const Hardware& gpu, const PlanningFacts& facts) {
  LayerSeconds seconds;
  MEGATRON_ASSIGN_OR_RETURN(seconds.head, SecondsOfLastPart(run, gpu, facts, PartLayers()));
  for (int64_t layer = 0; layer < model.transformer.num_layers; ++layer) {
    MEGATRON_ASSIGN_OR_RETURN(const SegmentSeconds with_head,
                              SecondsOfLastPart(run, gpu, facts, OneLayer(run, model, layer)));
    seconds.layers.push_back(Difference(with_head, seconds.head));
  }
  return seconds;
}

// Returns the number of layers of each part of the model.
std::vector<int64_t> LayersOfParts(const StagePlacement& placement, int64_t layers) {
  if (!placement.layers.empty()) return placement.layers;
  const int parts = placement.stages * placement.chunks;
  return std::vector<int64_t>(parts, layers / parts);
}

// Returns the stages with a segment for each one of the plan's.
std::vector<TimedStage> TimedStages(const ModelOptions& model, const StagePlacement& placement,
                                    const std::vector<int64_t>& layers_of_parts,
                                    int64_t layers_of_segment, const RunPlan& plan,
                                    const Schedule& schedule, const LayerSeconds& seconds) {
  std::vector<TimedStage> stages(placement.stages);
  for (int s = 0; s < placement.stages; ++s) {
    TimedStage& stage = stages[s];
    stage.actions = schedule.actions[s];
    stage.writes_next_input = model.layer_recompute.method != LayerRecompute::kNone;
    stage.chunks.resize(placement.chunks);
    const std::vector<std::vector<int64_t>>& kept = plan.stages[s].sizes.offload.segments;
    for (int c = 0; c < placement.chunks; ++c) {
      TimedChunk& chunk = stage.chunks[c];
      const int position = PositionOf(placement.order, placement.stages, {s, c});
      const auto part = layers_of_parts.begin() + position;
      int64_t layer = std::accumulate(layers_of_parts.begin(), part, int64_t{0});
      const int64_t end = layer + *part;
      for (const int64_t bytes : kept[c]) {
        TimedSegment segment;
        segment.bytes = static_cast<double>(bytes);
        for (int64_t i = 0; i < layers_of_segment && layer < end; ++i, ++layer) {
          const SegmentSeconds& one = seconds.layers[layer];
          segment.seconds.forward += one.forward;
          segment.seconds.backward += one.backward;
        }
        chunk.segments.push_back(segment);
      }
      if (position + 1 == placement.stages * placement.chunks) chunk.head = seconds.head;
    }
  }
  return stages;
}

}  // namespace

absl::StatusOr<OffloadChoice> ChooseOffload(const config::PretrainConfig& config,
                                            const RunOptions& options, const RunPlan& plan,
                                            const PlanningFacts& facts) {
  const double gb_per_second = facts.hardware.host_link_gb_per_s();
  if (gb_per_second == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(facts.source,
                     ": the hardware has no host_link_gb_per_s, by which layers are "
                     "counted"));
  }
  const ModelOptions& model = options.trainer.model;
  MEGATRON_ASSIGN_OR_RETURN(const PlannedRun run,
                            ToPlannedRun(config, model.padded_vocab_size, facts.program));
  const Hardware gpu = HardwareOfRun(config, options.num_ranks(), facts.hardware);
  MEGATRON_ASSIGN_OR_RETURN(const LayerSeconds seconds, PredictLayers(run, model, gpu, facts));
  const StagePlacement placement = ToPlacement(config);
  const std::vector<int64_t> layers = LayersOfParts(placement, model.transformer.num_layers);
  const int64_t most = *std::max_element(layers.begin(), layers.end());
  const int64_t of_segment = model.layer_recompute.method == LayerRecompute::kUniform
                                 ? model.layer_recompute.num_layers
                                 : 1;
  const int64_t segments =
      MostHiddenSegments(TimedStages(model, placement, layers, of_segment, plan,
                                     ScheduleOfStep(config, run.layout), seconds),
                         1e9 * gb_per_second * run.program.link_efficiency());
  OffloadChoice choice;
  choice.num_layers = std::min(segments * of_segment, most);
  choice.text = absl::StrFormat(
      "%s leave for host memory: a link of %.3g GB/s hides %s, by %s",
      choice.num_layers == 0
          ? "no activations"
          : absl::StrCat("activations of ", choice.num_layers, " of ", most, " layers"),
      gb_per_second, choice.num_layers == most ? "all" : "no more", facts.source);
  return choice;
}

}  // namespace megatron
