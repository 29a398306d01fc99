#include "megatron/train/planning/explain_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/first_trained_part.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/span_names.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/pipeline_section.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/trained_layers.h"

namespace megatron {
namespace {

// The parts of a model, what is trained of its layers, and the first part that is trained.
struct ModelParts {
  std::vector<PartLayers> layers;
  TrainedLayers trained;
  int first_trained = 0;
};

int64_t CountOf(const PartLayers& part) {
  return part.dense + part.mixtures + part.encoders + AllBranches(part.branches);
}

// Sets what is trained of a part whose layers begin with this one. `letters` are those of a hybrid
// model, or none.
void SetTrained(const TrainedLayers& trained, int64_t first, const std::vector<bool>& is_mixture,
                const std::string& letters, PartLayers* part) {
  if (trained.layers.empty()) return;
  const int64_t count = CountOf(*part);
  double weights = 0;
  int64_t with_backward = 0;
  for (int64_t i = first; i < first + count; ++i) {
    const TrainedLayer& layer = trained.layers[i];
    if (layer.has_backward) {
      weights += layer.weights;
      ++with_backward;
    } else if (!letters.empty()) {
      AddBranches(CountBranches(letters.substr(i, 1)), &part->forward_branches);
    } else {
      ++(i < first + part->encoders ? part->forward_encoders
         : is_mixture[i]            ? part->forward_mixtures
                                    : part->forward_dense);
    }
  }
  if (with_backward > 0) part->weights = weights / double(with_backward);
  part->head_weights = trained.head_weights;
}

absl::StatusOr<ModelParts> PartsOf(const config::PretrainConfig& config, int64_t vocab_size) {
  const config::ModelConfig& model = config.model();
  ModelParts parts;
  const TrainerOptions trainer = ToRunOptions(config, vocab_size).trainer;
  MEGATRON_ASSIGN_OR_RETURN(parts.trained, FindTrainedLayers(trainer.model, trainer.freeze));
  if (!trainer.freeze.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(const NamePatterns frozen, NamePatterns::Create(trainer.freeze));
    parts.first_trained = FirstTrainedPart(trainer.model, trainer.placement, frozen);
  }
  const StagePlacement placement = ToPlacement(config);
  const int64_t num_parts = int64_t{placement.stages} * placement.chunks;
  std::vector<int64_t> counts = placement.layers;
  const int64_t all = TotalLayers(model);
  if (counts.empty()) counts.assign(num_parts, all / num_parts);
  std::string letters;  // those of a hybrid model
  if (model.has_hybrid_layer_pattern()) {
    MEGATRON_ASSIGN_OR_RETURN(letters, HybridLayers(model));
  }
  std::vector<bool> is_mixture(all, false);
  if (model.num_experts() > 0) {
    MEGATRON_ASSIGN_OR_RETURN(is_mixture,
                              ParseLayerPattern(model.moe_layer_freq(), model.num_layers()));
  }
  const bool has_encoder = model.model_type() == config::ModelType::t5;
  int64_t encoders = has_encoder ? model.encoder_num_layers() : 0;  // those that are left
  auto layer = is_mixture.begin();
  for (const int64_t count : counts) {
    PartLayers part;
    const int64_t first = layer - is_mixture.begin();
    if (!letters.empty()) {
      part.branches = CountBranches(letters.substr(first, count));
    } else {
      part.encoders = std::min(encoders, count);
      part.mixtures = std::count(layer, layer + count, true);
      part.dense = count - part.mixtures - part.encoders;
    }
    SetTrained(parts.trained, first, is_mixture, letters, &part);
    encoders -= part.encoders;
    layer += count;
    parts.layers.push_back(part);
  }
  return parts;
}

// Returns the part of a stage's parameters that is trained, as a mean over its layers.
double TrainedShare(const StagePlan& plan, const ModelParts& parts) {
  if (parts.trained.layers.empty()) return 1;
  double trained = 0, layers = 0;
  for (const int position : plan.positions) {
    int64_t first = 0;
    for (int i = 0; i < position; ++i) first += CountOf(parts.layers[i]);
    const int64_t count = CountOf(parts.layers[position]);
    for (int64_t i = first; i < first + count; ++i) trained += parts.trained.layers[i].parameters;
    layers += double(count);
  }
  return layers == 0 ? 1 : trained / layers;
}

// Leaves out the optimizer's time for parameters that are frozen, and that of their gradients'
// messages. Where weights are shared out, they are gathered all the same: these messages stay.
void SetTrainedParameters(double share, const Hardware& gpu, const PlannedRun& run,
                          DataParallelWork work, StepSeconds* seconds) {
  if (share == 1) return;
  seconds->total -= seconds->optimizer + seconds->data_parallel;
  seconds->optimizer *= share;
  if (!run.layout.shards_parameters) {
    for (double DataParallelWork::*part :
         {&DataParallelWork::parameters, &DataParallelWork::expert_parameters,
          &DataParallelWork::low_rank_parameters, &DataParallelWork::low_rank_expert_parameters}) {
      work.*part *= share;
    }
    seconds->data_parallel = DataParallelSeconds(gpu, run.program, run.layout, work);
  }
  seconds->total += seconds->optimizer + seconds->data_parallel;
}

PartCosts ToCosts(const std::vector<PartSeconds>& parts) {
  std::vector<ActionCosts> costs;
  for (const PartSeconds& part : parts) {
    costs.push_back({part.forward + part.forward_calls, part.backward_input + part.backward_calls,
                     part.backward_weight});
  }
  return PartCosts(std::move(costs));
}

// Replaces what the closed form says about the passes by what was simulated.
void SetPasses(const StagePlan& plan, const PredictedParts& parts, const SimulatedStep& simulated,
               StepSeconds* seconds) {
  const double m = plan.microbatches;
  seconds->compute = seconds->tensor_parallel = 0;
  seconds->context_parallel = seconds->expert_parallel = 0;
  for (const int position : plan.positions) {
    const PartSeconds& part = parts.positions[position];
    seconds->compute += m * (part.forward + part.backward_input + part.backward_weight);
    seconds->tensor_parallel += m * part.tensor;
    seconds->context_parallel += m * part.context;
    seconds->expert_parallel += m * part.expert;
  }
  seconds->bubble = simulated.bubble;
  seconds->messages = simulated.message_seconds;
  seconds->total = simulated.seconds + seconds->data_parallel + seconds->host_link +
                   seconds->optimizer + seconds->constant;
}

// Heads of multi-token prediction that are alone on a part read what the part before computes for
// each of them.
std::vector<double> TensorsOfEdges(const config::PretrainConfig& config) {
  const StagePlacement placement = ToPlacement(config);
  std::vector<double> tensors(placement.parts() - 1, 1);
  if (placement.mtp_before_last) tensors.back() += double(config.model().mtp_num_layers());
  return tensors;
}

TrafficStage StageOf(const StagePlan& plan, const std::vector<PartLayers>& layers,
                     const MessageCosts& messages) {
  TrafficStage stage;
  stage.has_embedding = stage.has_head = false;
  for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
    const int position = plan.positions[chunk];
    stage.layers.dense += layers[position].dense;
    stage.layers.mixtures += layers[position].mixtures;
    stage.layers.encoders += layers[position].encoders;
    AddBranches(layers[position].branches, &stage.layers.branches);
    stage.has_embedding |= !plan.has_input(chunk);
    stage.has_head |= !plan.has_output(chunk);
  }
  for (const Step& step : plan.steps)
    stage.messages += messages.TensorsOf(plan, step.sends, /*are_sent=*/true);
  return stage;
}

double ExposedSeconds(TrafficAxis axis, const StepSeconds& seconds) {
  switch (axis) {
    case TrafficAxis::kTensor:
      return seconds.tensor_parallel;
    case TrafficAxis::kContext:
      return seconds.context_parallel;
    case TrafficAxis::kExpert:
      return seconds.expert_parallel;
    case TrafficAxis::kPipeline:
      return seconds.messages;
    case TrafficAxis::kData:
      return seconds.data_parallel;
  }
  return 0;
}

std::vector<TrafficOfAxis> ByAxis(const std::vector<TrafficRow>& rows, const Hardware& gpu,
                                  const Implementation& program, const StepSeconds& seconds) {
  std::vector<TrafficOfAxis> traffic;
  for (const TrafficRow& row : rows) {
    if (traffic.empty() || traffic.back().axis != row.axis) {
      traffic.emplace_back();
      traffic.back().axis = row.axis;
      traffic.back().exposed = ExposedSeconds(row.axis, seconds);
    }
    TrafficOfAxis& axis = traffic.back();
    axis.rows.push_back(row);
    axis.bytes += SentBytes(row);
    axis.network_bytes += NetworkBytes(gpu, row);
    axis.seconds += TrafficSeconds(gpu, program, row);
    // Messages between stages go one stride away, however many stages there are.
    const bool inside = row.axis == TrafficAxis::kPipeline
                            ? row.group.stride < gpu.domain()
                            : RanksInDomain(row.group, gpu.domain()) >= row.group.ranks;
    axis.crosses_network |= !inside;
  }
  // What is hidden was not predicted beside what is exposed: neither is above all of it.
  for (TrafficOfAxis& axis : traffic) axis.seconds = std::max(axis.seconds, axis.exposed);
  return traffic;
}

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

Schedule ScheduleOfStep(const config::PretrainConfig& config, const PlanLayout& layout) {
  ScheduleOptions options;
  options.kind = ToScheduleKind(config.parallel());
  options.stages = static_cast<int>(layout.pp);
  options.microbatches = static_cast<int>(layout.micro_batches);
  options.chunks = static_cast<int>(layout.vpp);
  options.group =
      static_cast<int>(config.parallel().microbatch_group_size_per_virtual_pipeline_stage());
  options.costs = ToActionCosts(config).Mean();
  return MakeSchedule(options);
}

absl::StatusOr<ActionCosts> PredictPassCosts(const config::PretrainConfig& config,
                                             int64_t padded_vocab_size, const Hardware& gpu,
                                             const Implementation& own,
                                             const MeasuredKernels& kernels) {
  MEGATRON_ASSIGN_OR_RETURN(const PlannedRun run, ToPlannedRun(config, padded_vocab_size, own));
  MEGATRON_ASSIGN_OR_RETURN(const ModelParts of_model, PartsOf(config, padded_vocab_size));
  MEGATRON_ASSIGN_OR_RETURN(
      const PredictedParts parts,
      PredictParts(gpu, run.program, kernels, run.model, run.layout, of_model.layers));
  return ToCosts(parts.positions).Mean();
}

absl::StatusOr<ExplainedStep> ExplainStep(const config::PretrainConfig& config,
                                          int64_t padded_vocab_size, const Hardware& gpu,
                                          const Implementation& own,
                                          const MeasuredKernels& kernels) {
  ExplainedStep step;
  MEGATRON_ASSIGN_OR_RETURN(step.run, ToPlannedRun(config, padded_vocab_size, own));
  const PlanModel& model = step.run.model;
  const PlanLayout& layout = step.run.layout;
  const Implementation& program = step.run.program;
  MEGATRON_ASSIGN_OR_RETURN(const ModelParts of_model, PartsOf(config, padded_vocab_size));
  const std::vector<PartLayers>& layers = of_model.layers;
  MEGATRON_ASSIGN_OR_RETURN(const StepPrediction predicted,
                            PredictStep(gpu, program, kernels, model, layout));
  MEGATRON_ASSIGN_OR_RETURN(const PredictedParts parts,
                            PredictParts(gpu, program, kernels, model, layout, layers));
  Schedule schedule = ScheduleOfStep(config, layout);
  schedule.first_trained = of_model.first_trained;
  const std::vector<StagePlan> plans = PlanStages(schedule, ToActionCosts(config));
  // The trainer's messages run beside its passes.
  const MessageCosts messages = {parts.message, /*beside_passes=*/true, TensorsOfEdges(config)};
  step.simulated = SimulateStep(plans, ToCosts(parts.positions), messages);
  step.stage = step.simulated.busiest;
  step.seconds = predicted.seconds;
  const double share = TrainedShare(plans[step.stage], of_model);
  SetTrainedParameters(share, gpu, step.run, predicted.data, &step.seconds);
  step.shares_cores = HasMoreRanksThanCores(gpu, layout.gpus());
  if (!step.shares_cores) SetPasses(plans[step.stage], parts, step.simulated, &step.seconds);
  std::vector<TrafficRow> rows =
      StepTraffic(program, model, layout, StageOf(plans[step.stage], layers, messages));
  for (TrafficRow& row : rows) {
    if (row.axis == TrafficAxis::kData && !layout.shards_parameters) row.bytes *= share;
  }
  step.traffic = ByAxis(rows, gpu, program, step.seconds);
  const auto flops = [&](const TrainedLayers& trained) {
    return FlopsPerToken(config.model(), padded_vocab_size, FlopsConvention::kCausalHalved,
                         trained);
  };
  step.model_flops = predicted.model_flops;
  if (!of_model.trained.layers.empty())
    step.model_flops *= flops(of_model.trained) / flops(TrainedLayers());
  step.parameters = predicted.total_parameters;
  // As the log counts them: those that an encoder reads, where there is one.
  const double length =
      model.encoder_layers() > 0 ? model.encoder_sequence() : double(layout.sequence);
  step.tokens = double(layout.micro_batch * layout.micro_batches * layout.dp) * length;
  return step;
}

std::vector<TracedRank> ToTrace(const SimulatedStep& step) {
  std::vector<TracedRank> ranks;
  for (const SimulatedStage& stage : step.stages) {
    TracedRank rank;
    rank.rank = static_cast<int>(ranks.size());
    rank.title = absl::StrCat("simulated stage ", rank.rank, " of ", step.stages.size());
    TracedStream compute;
    compute.name = "compute";
    for (const TimedAction& pass : stage.passes) {
      TracedSpan span;
      span.name = absl::StrCat(SpanName(pass.action.kind), " ", pass.action.microbatch);
      span.numbers = {{"chunk", pass.action.chunk}};
      span.begin = Nanoseconds(pass.start);
      span.end = Nanoseconds(pass.end);
      compute.spans.push_back(std::move(span));
    }
    TracedStream exchanges;
    exchanges.name = "communication pp";
    for (const SimulatedExchange& exchange : stage.exchanges) {
      TracedSpan span;
      span.name = exchange.name;
      span.begin = Nanoseconds(exchange.begin);
      span.end = Nanoseconds(exchange.end);
      exchanges.spans.push_back(std::move(span));
    }
    rank.streams = {std::move(compute), std::move(exchanges)};
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace megatron
