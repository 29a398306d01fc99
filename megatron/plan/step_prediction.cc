#include "megatron/plan/step_prediction.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "megatron/base/status_macros.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/plan/check_plan_sizes.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/data_traffic.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/layer_costs.h"
#include "megatron/plan/low_rank_costs.h"
#include "megatron/plan/matrix_rule_costs.h"
#include "megatron/plan/rank_states.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/plan/stage_shapes.h"
#include "megatron/plan/update_seconds.h"

namespace megatron {
namespace {

// The layers whose tensors are on the GPU where host memory has those of the others
// (models/activation_store.h); the input of a part's first layer stays there.
constexpr double kOffloadWindows = 3;

// Passes of micro-batches through parts of a pipeline on shared cores that are played.
constexpr int64_t kMostPlayedPasses = 1 << 17;

ScheduleKind KindOf(PlanSchedule schedule) {
  switch (schedule) {
    case PlanSchedule::kOneForwardOneBackward:
      return ScheduleKind::kOneForwardOneBackward;
    case PlanSchedule::kZeroBubbleH1:
      return ScheduleKind::kZeroBubbleH1;
    case PlanSchedule::kZeroBubbleV:
      return ScheduleKind::kZeroBubbleV;
    case PlanSchedule::kGPipe:
      return ScheduleKind::kGPipe;
  }
  return ScheduleKind::kOneForwardOneBackward;
}

class Predictor {
 public:
  Predictor(const Hardware& gpu, const Implementation& program, const MeasuredKernels& kernels,
            const PlanModel& model, const PlanLayout& layout)
      : gpu_(gpu),
        program_(program),
        model_(model),
        l_(layout),
        layers_(gpu, program, kernels, model, layout),
        dense_(is_hybrid() ? LayerCosts() : layers_.Layer(/*is_mixture=*/false)),
        mixture_(has_experts() && !is_hybrid() ? layers_.Layer(/*is_mixture=*/true) : LayerCosts()),
        encoder_(EncoderLayer(kernels)),
        branches_(is_hybrid() ? Branches() : BranchCosts()),
        head_seconds_(layers_.HeadSeconds()),
        rates_(RatesOf(gpu, program, layout)),
        tokens_(double(layout.micro_batch) * layout.sequence / layout.cp),
        tp_(double(layout.tp)),
        weight_ranks_(double(layout.weight_ranks())),
        stages_(model, layout) {
    SlowMemory();
  }

  StepPrediction Predict() const;
  PredictedParts Parts(const std::vector<PartLayers>& positions) const;

 private:
  using BranchCosts = std::array<LayerCosts, kPlanBranches>;

  bool has_experts() const { return model_.experts() > 0; }
  bool is_hybrid() const { return !model_.hybrid_layers().empty(); }
  BranchCosts Branches() const;
  double MixtureShare(bool is_first) const;
  LayerCosts EncoderLayer(const MeasuredKernels& kernels) const;
  LayerCosts MeanLayer(double mixture_share) const;
  LayerCosts LayerOf(const StageShape& stage, double mixture_share) const;
  LayerCosts MeanOfAll() const;
  double MemoryShare() const;
  void SlowMemory();
  double DataSeconds(const DataParallelWork& work) const;
  double SecondsOf(const LayerCosts& layer) const;
  StageShape AllLayers() const;
  double AllSeconds(double mixture_share) const;
  StageShape Busiest(double mixture_share) const;
  double Recomputed(const LayerCosts& layer) const;
  void AddLayers(PartSeconds* part, const LayerCosts& layer, double count) const;
  void AddForward(PartSeconds* part, const LayerCosts& layer, double count) const;
  double BubbleSeconds(const StageShape& busiest, double mixture_share) const;
  double SecondsOfMessage() const;
  double LevelSeconds(double parameters) const;
  double HeadFlops() const { return 2 * tokens_ * model_.hidden() * model_.vocab() / tp_; }
  double RuleSeconds(double mixture_share) const;  // the seconds of a mean layer
  double ClipSeconds() const;
  double MemoryBytes(const StageShape& stage, bool is_first) const;
  double HostBytes(const StageShape& stage, bool is_first) const;
  double EndParameters(const StageShape& stage) const;
  StepSeconds Seconds(double mixtures, DataParallelWork* data) const;
  double IdleSeconds(double mixture_share) const;
  double EndCallSeconds(const StageShape& stage) const;
  void AddHead(PartSeconds* part, double weights = 1) const;

  const Hardware& gpu_;
  const Implementation& program_;
  const PlanModel& model_;
  const PlanLayout& l_;
  const LayerPredictor layers_;
  LayerCosts dense_;
  LayerCosts mixture_;
  LayerCosts encoder_;    // of a model that has one
  BranchCosts branches_;  // of a hybrid model, of the branches that it has
  const double head_seconds_;
  RankRates rates_;
  const double tokens_;
  const double tp_;
  const double weight_ranks_;  // those that share out a weight
  const StageShapes stages_;
  double memory_share_ = 1;  // the share of memory's rate that weights and their states have
};

Predictor::BranchCosts Predictor::Branches() const {
  BranchCosts costs;
  const BranchCounts counts = CountBranches(model_.hybrid_layers());
  for (int branch = 0; branch < kPlanBranches; ++branch)
    if (counts[branch] > 0) costs[branch] = layers_.Branch(static_cast<PlanBranch>(branch));
  return costs;
}

// Returns the seconds of all layers for a micro-batch.
double Predictor::AllSeconds(double mixture_share) const {
  if (is_hybrid()) return double(model_.layers()) * SecondsOf(LayerOf(AllLayers(), 0));
  const double encoders = double(model_.encoder_layers());
  const double others = double(model_.layers()) - encoders;
  return others * SecondsOf(MeanLayer(mixture_share)) +
         (encoders > 0 ? encoders * SecondsOf(encoder_) : 0);
}

// Of equal stages it is the one with the head.
StageShape Predictor::Busiest(double mixture_share) const {
  const double of_layer = SecondsOf(MeanLayer(mixture_share));
  const auto seconds = [&](const StageShape& stage) {
    const double layers = stages_.HasSeveralKinds()
                              ? stage.layers * SecondsOf(LayerOf(stage, mixture_share))
                              : stage.layers * of_layer;
    return layers + (stage.has_head ? head_seconds_ : 0);
  };
  StageShape busiest = stages_.Last();
  if (stages_.HasSeveralKinds()) {
    busiest = stages_.At(l_.pp - 1);
    for (int64_t number = 0; number + 1 < l_.pp; ++number) {
      const StageShape stage = stages_.At(number);
      if (seconds(stage) > seconds(busiest)) busiest = stage;
    }
    return busiest;
  }
  if (seconds(stages_.First()) > seconds(busiest)) busiest = stages_.First();
  if (l_.pp > 2 && seconds(stages_.Inner()) > seconds(busiest)) busiest = stages_.Inner();
  return busiest;
}

// Returns the share of mixtures among the layers of the first stage, or of the stages after it.
// Dense layers come first.
double Predictor::MixtureShare(bool is_first) const {
  if (!has_experts()) return 0;
  const double layers = double(model_.layers()) / l_.pp;
  if (is_first) return 1 - std::min(1.0, model_.dense_layers() / layers);
  const double dense = std::max(0.0, model_.dense_layers() - layers);
  return l_.pp == 1 ? 0 : 1 - std::min(1.0, dense / (layers * (l_.pp - 1)));
}

// Adds the costs of one layer to those of others, of which temporary memory is that of the largest.
void Add(const LayerCosts& layer, double times, LayerCosts* sum) {
  for (double LayerCosts::*part :
       {&LayerCosts::forward, &LayerCosts::backward, &LayerCosts::backward_weight,
        &LayerCosts::attention_core, &LayerCosts::tensor_forward, &LayerCosts::tensor_backward,
        &LayerCosts::context_forward, &LayerCosts::context_backward, &LayerCosts::expert,
        &LayerCosts::flops, &LayerCosts::parameters, &LayerCosts::expert_parameters,
        &LayerCosts::saved_bytes, &LayerCosts::input_bytes, &LayerCosts::host_bytes,
        &LayerCosts::link_seconds}) {
    sum->*part += times * layer.*part;
  }
  sum->widest = std::max(sum->widest, layer.widest);
  sum->weight_shapes = std::max(sum->weight_shapes, layer.weight_shapes);
}

LayerCosts Mean(const LayerCosts& a, const LayerCosts& b, double share_of_b) {
  if (share_of_b == 0) return a;
  if (share_of_b == 1) return b;
  LayerCosts mean;
  Add(a, 1 - share_of_b, &mean);
  Add(b, share_of_b, &mean);
  mean.widest = b.widest;
  mean.weight_shapes = b.weight_shapes;
  return mean;
}

LayerCosts Predictor::EncoderLayer(const MeasuredKernels& kernels) const {
  if (model_.encoder_layers() == 0) return LayerCosts();
  const PlanModel model = EncoderOf(model_);
  const PlanLayout layout = EncoderLayout(model_, l_);
  return LayerPredictor(gpu_, program_, kernels, model, layout).Layer(/*is_mixture=*/false);
}

LayerCosts Predictor::MeanLayer(double share) const { return Mean(dense_, mixture_, share); }

// Returns the mean over the stage's layers, of which those that are no encoder's have this share of
// mixtures. A hybrid model's are known.
LayerCosts Predictor::LayerOf(const StageShape& stage, double mixture_share) const {
  if (is_hybrid()) {
    LayerCosts mean;
    for (int branch = 0; branch < kPlanBranches; ++branch)
      if (stage.branches[branch] > 0)
        Add(branches_[branch], double(stage.branches[branch]) / stage.layers, &mean);
    return mean;
  }
  if (stage.encoders == 0) return MeanLayer(mixture_share);
  return Mean(MeanLayer(mixture_share), encoder_, stage.encoders / stage.layers);
}

// Returns the mean over the layers of all stages.
LayerCosts Predictor::MeanOfAll() const {
  return LayerOf(AllLayers(), (MixtureShare(true) + (l_.pp - 1) * MixtureShare(false)) / l_.pp);
}

double Predictor::MemoryShare() const {
  if (gpu_.cores() == 0) return 1;
  const LayerCosts mean = MeanOfAll();
  const double layers = double(model_.layers()) / double(l_.pp);
  const double tables =
      (model_.is_tied() ? 1 : 2) * model_.vocab() * model_.hidden() / weight_ranks_ / double(l_.pp);
  const double bytes =
      StateBytes(program_, l_, layers * mean.parameters + tables, NumDenseCopies(l_)) +
      StateBytes(program_, l_, layers * mean.expert_parameters, NumExpertCopies(l_));
  return MemoryShareOf(gpu_, l_.gpus(), bytes);
}

// The passes of a micro-batch come back to weights, whose gradients they read and write, when they
// have been through all others. Kernels were calibrated with operands that caches of the machine
// hold.
void Predictor::SlowMemory() {
  memory_share_ = MemoryShare();
  if (memory_share_ >= 1) return;
  const double of_byte = (1 / memory_share_ - 1) * program_.memory_efficiency() / rates_.memory;
  std::vector<LayerCosts*> layers = {&dense_, &mixture_, &encoder_};
  for (LayerCosts& branch : branches_) layers.push_back(&branch);
  for (LayerCosts* layer : layers) {
    const double parameters = layer->parameters + layer->expert_parameters;
    const double weights = rates_.element_bytes * parameters * of_byte;
    const double gradients = 2 * 4 * parameters * of_byte;
    layer->forward += weights;
    layer->backward += weights + gradients;
    layer->backward_weight += gradients;
  }
  rates_.optimizer *= memory_share_;
}

// Threads read each other's gradients and weights.
double Predictor::DataSeconds(const DataParallelWork& work) const {
  if (memory_share_ >= 1) return DataParallelSeconds(gpu_, program_, l_, work);
  Hardware slowed = gpu_;
  slowed.set_link_gb_per_s(memory_share_ * gpu_.link_gb_per_s());
  return DataParallelSeconds(slowed, program_, l_, work);
}

// Returns the seconds of all passes of a layer for a micro-batch, with what they wait for.
double Predictor::SecondsOf(const LayerCosts& layer) const {
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  return layer.forward + layer.backward + Recomputed(layer) + layer.tensor_forward +
         layer.tensor_backward + layer.context_forward + layer.context_backward +
         (is_full ? layer.tensor_forward + layer.context_forward : 0) +
         (is_full ? 1.5 : 1) * layer.expert;
}

// The largest scores of all heads are found over all ranks. What is clipped isn't known.
double Predictor::ClipSeconds() const {
  if (!l_.clips_scores) return 0;
  return CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, {l_.gpus(), 1},
                           ScoreBytes(model_));
}

double Predictor::RuleSeconds(double mixture_share) const {
  if (l_.muon_steps == 0 && !l_.is_lamb) return 0;
  const auto seconds = [&](bool is_mixture) {
    return MatrixRuleSeconds(gpu_, program_, model_, l_, is_mixture);
  };
  return (mixture_share > 0 ? mixture_share * seconds(true) : 0) +
         (mixture_share < 1 ? (1 - mixture_share) * seconds(false) : 0);
}

double Predictor::HostBytes(const StageShape& stage, bool is_first) const {
  const LayerCosts layer = LayerOf(stage, MixtureShare(is_first));
  return HostStateBytes(program_, l_, stage.layers * layer.parameters + EndParameters(stage),
                        NumDenseCopies(l_)) +
         HostStateBytes(program_, l_, stage.layers * layer.expert_parameters, NumExpertCopies(l_)) +
         stage.flight * stage.layers * layer.host_bytes;
}

// Returns the parameters of a stage's word tables.
double Predictor::EndParameters(const StageShape& stage) const {
  const double tables = model_.is_tied() ? std::min(stage.ends, 1) : stage.ends;
  return tables * model_.vocab() * model_.hidden() / weight_ranks_;
}

double Predictor::MemoryBytes(const StageShape& stage, bool is_first) const {
  const LayerCosts layer = LayerOf(stage, MixtureShare(is_first));
  const double layers = stage.layers;
  const double embedding = model_.vocab() * model_.hidden() / weight_ranks_;
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  double bytes = stage.flight * layers * (is_full ? layer.input_bytes : layer.saved_bytes);
  if (l_.activations_on_host) {
    bytes = std::min(kOffloadWindows, layers) * layer.host_bytes +
            stage.flight * double(l_.vpp) * layer.input_bytes;
  }
  if (is_full) bytes += layer.saved_bytes;
  const double logits = l_.logits_chunk > 0 ? std::min(tokens_, double(l_.logits_chunk)) : tokens_;
  if (stage.has_head) bytes += rates_.element_bytes * logits * model_.vocab() / tp_;
  if (program_.has_dummy_gradients()) {
    bytes += rates_.element_bytes * (layer.weight_shapes + (stage.has_head ? embedding : 0));
  }
  if (l_.shards_parameters || l_.weights_on_host)
    bytes += 2 * rates_.element_bytes * (layer.parameters + layer.expert_parameters);
  return bytes + layer.widest +
         StateBytes(program_, l_, layers * layer.parameters + EndParameters(stage),
                    NumDenseCopies(l_)) +
         StateBytes(program_, l_, layers * layer.expert_parameters, NumExpertCopies(l_));
}

double Predictor::Recomputed(const LayerCosts& layer) const {
  if (l_.recompute == PlanRecompute::kFull) return layer.forward;
  const bool runs_core = !program_.is_fused() || program_.recomputes_attention();
  return l_.recompute == PlanRecompute::kSelective && runs_core ? layer.attention_core : 0;
}

// `mixtures` is the share of them among the layers. No stage behind the first has more dense layers
// than others.
StepSeconds Predictor::Seconds(double mixtures, DataParallelWork* data) const {
  const double m = double(l_.micro_batches);
  const StageShape busiest = Busiest(mixtures);
  if (is_hybrid() && busiest.layers > 0)
    mixtures = double(busiest.branches[kExpertsBranch]) / busiest.layers;
  const LayerCosts layer = LayerOf(busiest, mixtures);
  const double again = Recomputed(layer);
  double tensor = layer.tensor_forward + layer.tensor_backward;
  double context = layer.context_forward + layer.context_backward;
  double expert = layer.expert;
  if (l_.recompute == PlanRecompute::kFull) {
    tensor += layer.tensor_forward;
    context += layer.context_forward;
    expert *= 1.5;
  }
  const double compute_of_layer = layer.forward + layer.backward + again;
  const double of_layer = compute_of_layer + tensor + context + expert;
  const double layers = busiest.layers;
  const double head = busiest.has_head ? head_seconds_ : 0;
  const double compute = layers * compute_of_layer;
  const double messages = 2 * l_.vpp * SecondsOfMessage();
  const double work = layers * of_layer + messages;
  StepSeconds s;
  s.compute = m * (compute + head);
  const double end_calls = EndCallSeconds(busiest);
  s.tensor_parallel = m * (layers * tensor + end_calls);
  s.context_parallel = m * layers * context;
  s.expert_parallel = m * layers * expert;
  s.messages = m * messages;
  s.bubble = BubbleSeconds(busiest, mixtures);
  const double parameters = layers * layer.parameters,
               embedding = model_.vocab() * model_.hidden() / weight_ranks_;
  const double experts = layers * layer.expert_parameters;
  const MatrixRuleLayer rule = MatrixRuleCosts(program_, model_, l_, has_experts());
  *data = {parameters * rule.dense_padding + embedding * rule.table_padding,
           experts * rule.expert_padding, work};
  data->layers = layers + busiest.ends;
  data->mixtures = std::max(1.0, mixtures * layers);
  const LowRankSavings of_dense = LowRankSavingsOfLayer(model_, l_, /*is_mixture=*/false),
                       of_mixture = LowRankSavingsOfLayer(model_, l_, /*is_mixture=*/true);
  data->low_rank_parameters =
      data->parameters - layers * ((1 - mixtures) * of_dense.dense + mixtures * of_mixture.dense) -
      LowRankSavingsOfWordTable(model_, l_);
  data->low_rank_expert_parameters =
      data->expert_parameters - layers * mixtures * of_mixture.experts;
  s.data_parallel = DataSeconds(*data);
  s.host_link = FetchSeconds(gpu_, program_, l_, rates_, layer, layers, embedding, work + head);
  const RankParameters of_rank = {parameters, embedding, experts};
  s.optimizer = UpdateSeconds(gpu_, program_, l_, rates_, of_rank, rule) +
                SumSeconds(l_, rates_, of_rank) + layers * RuleSeconds(mixtures) + ClipSeconds();
  s.constant = program_.step_seconds();
  const double levels = LevelSeconds(parameters + embedding);
  s.tensor_parallel += levels;
  s.total = m * (work + head + end_calls) + s.bubble + levels + s.data_parallel + s.host_link +
            s.optimizer + s.constant;
  // What stages have less of it on average.
  const double mean = (AllSeconds(mixtures) + head_seconds_) / double(l_.pp);
  ShareCores(gpu_, program_, l_, m * (layers * of_layer + head - mean), IdleSeconds(mixtures), &s);
  return s;
}

// Returns for how long cores that stages share are idle.
double Predictor::IdleSeconds(double mixture_share) const {
  if (l_.pp == 1 || !HasMoreRanksThanCores(gpu_, l_.gpus())) return 0;
  std::vector<PartSeconds> parts;
  for (int64_t position = 0; position < l_.pp * l_.vpp; ++position) {
    const StageShape part = stages_.Part(position);
    PartSeconds seconds;
    AddLayers(&seconds, LayerOf(part, mixture_share), part.layers);
    parts.push_back(seconds);
  }
  AddHead(&parts.back());
  const double message = SecondsOfMessage();
  std::vector<ActionCosts> costs;
  for (const PartSeconds& part : parts) {
    costs.push_back({part.forward + part.forward_calls + message,
                     part.backward_input + part.backward_calls + message, part.backward_weight});
  }
  const PartCosts seconds(std::move(costs));
  ScheduleOptions options;
  options.kind = KindOf(l_.schedule);
  options.stages = static_cast<int>(l_.pp);
  options.chunks = static_cast<int>(l_.vpp);
  options.costs = seconds.Mean();
  const auto idle = [&](int64_t micro_batches) {
    options.microbatches = static_cast<int>(micro_batches);
    // Other numbers of micro-batches can't be interleaved: they go in one group.
    const bool fills = FillsGroups(options.stages, 0, options.microbatches);
    options.group = fills ? 0 : options.microbatches;
    return IdleSecondsOfCores(MakeSchedule(options), seconds, l_.gpus() / l_.pp, gpu_.cores(),
                              program_.turn_seconds());
  };
  int64_t half = std::max<int64_t>(1, kMostPlayedPasses / (2 * l_.pp * l_.vpp));
  if (half > l_.pp) half -= half % l_.pp;
  if (l_.micro_batches <= 2 * half) return idle(l_.micro_batches);
  // Further micro-batches, in whole rounds of the stages, leave cores idle for as long as those of
  // the second half.
  const int64_t rest = half < l_.pp ? 0 : l_.micro_batches % l_.pp;
  const double fewer = idle(half + rest), more = idle(2 * half + rest);
  const double further = double(l_.micro_batches - rest - 2 * half) / double(half);
  return more + further * std::max(0.0, more - fewer);
}

// Returns the seconds of the calls of an embedding and a head in all passes of a micro-batch. The
// programs on GPUs were fitted without them.
double Predictor::EndCallSeconds(const StageShape& stage) const {
  if (gpu_.cores() == 0 || l_.grid.is_grid()) return 0;
  const bool has_embedding = stage.ends > (stage.has_head ? 1 : 0);
  const PlanGroup group{l_.tp, 1};
  const double bytes = rates_.element_bytes * tokens_ * model_.hidden();
  // With sequence parallelism the head gathers its input in either pass, and scatters its gradient.
  const auto seconds = [&](TrafficCall call, double sent) {
    return CollectiveSeconds(gpu_, program_, call, group, sent);
  };
  const double sums =
      l_.is_sequence_parallel
          ? (2 * has_embedding + 3 * stage.has_head) * seconds(TrafficCall::kAllGather, bytes)
          : (has_embedding + stage.has_head) * seconds(TrafficCall::kAllReduce, bytes);
  // The largest logits go first, and then two numbers a token.
  return sums + stage.has_head * (seconds(TrafficCall::kAllReduce, 4 * tokens_) +
                                  seconds(TrafficCall::kAllReduce, 2 * 4 * tokens_));
}

double Predictor::SecondsOfMessage() const {
  if (l_.pp == 1) return 0;
  // With an encoder, messages have the activations of both stacks.
  const double read = double(l_.micro_batch) * model_.encoder_sequence() / double(l_.cp);
  const double whole = rates_.element_bytes * (tokens_ + read) * model_.hidden();
  const int64_t parts = MessageParts(program_, l_.tp, l_.shares_rows());
  return MessageSeconds(gpu_, program_, l_.pipeline_stride(), whole / double(parts)) +
         LaneSeconds(gpu_);
}

// Once a step the levels of squares sum up the gradients of a rank's weights.
double Predictor::LevelSeconds(double parameters) const {
  if (l_.grid.is_cube || l_.grid.depth == 1) return 0;
  return CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, {l_.grid.depth, 1},
                           4 * parameters);
}

// Forward passes have half of the experts' calls.
void Predictor::AddLayers(PartSeconds* part, const LayerCosts& layer, double count) const {
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  part->forward += count * layer.forward;
  part->backward_input += count * (layer.backward - layer.backward_weight + Recomputed(layer));
  part->backward_weight += count * layer.backward_weight;
  part->tensor +=
      count * (layer.tensor_forward + layer.tensor_backward + (is_full ? layer.tensor_forward : 0));
  part->context += count * (layer.context_forward + layer.context_backward +
                            (is_full ? layer.context_forward : 0));
  part->expert += count * (is_full ? 1.5 : 1) * layer.expert;
  part->forward_calls += count * (layer.tensor_forward + layer.context_forward + layer.expert / 2);
  part->backward_calls = part->tensor + part->context + part->expert - part->forward_calls;
}

// Adds layers that have no backward.
void Predictor::AddForward(PartSeconds* part, const LayerCosts& layer, double count) const {
  part->forward += count * layer.forward;
  part->tensor += count * layer.tensor_forward;
  part->context += count * layer.context_forward;
  part->expert += count * layer.expert / 2;
  part->forward_calls += count * (layer.tensor_forward + layer.context_forward + layer.expert / 2);
}

// Without weights' gradients that are put off, a micro-batch passes the other stages while the
// busiest one waits.
double Predictor::BubbleSeconds(const StageShape& busiest, double mixture_share) const {
  if (l_.pp == 1) return 0;
  const LayerCosts layer = LayerOf(busiest, mixture_share);
  const double message = SecondsOfMessage();
  if (l_.schedule == PlanSchedule::kOneForwardOneBackward || l_.schedule == PlanSchedule::kGPipe) {
    const double layers = AllSeconds(mixture_share) - busiest.layers * SecondsOf(layer);
    const double messages = 2 * double(l_.vpp) * message * double(l_.pp - 1);
    const double head = busiest.has_head ? 0 : head_seconds_;
    return (layers + messages + head) / double(l_.vpp);
  }
  PartSeconds part;
  AddLayers(&part, layer, busiest.layers);
  // A third of the head is in its weights' gradients.
  const double weights = part.backward_weight + (busiest.has_head ? head_seconds_ / 3 : 0);
  const double forward = part.forward + part.forward_calls + double(l_.vpp) * message;
  const double input = part.backward_input + part.backward_calls + double(l_.vpp) * message;
  if (l_.schedule == PlanSchedule::kZeroBubbleV)
    return ZeroBubbleVIdle(forward, input, weights, l_.pp);
  return ZeroBubbleH1Idle(forward, input, weights, l_.pp, l_.micro_batches);
}

PredictedParts Predictor::Parts(const std::vector<PartLayers>& positions) const {
  PredictedParts parts;
  for (const PartLayers& layers : positions) {
    PartSeconds part;
    AddLayers(&part, dense_, double(layers.dense - layers.forward_dense));
    AddLayers(&part, mixture_, double(layers.mixtures - layers.forward_mixtures));
    AddLayers(&part, encoder_, double(layers.encoders - layers.forward_encoders));
    for (int branch = 0; branch < kPlanBranches; ++branch)
      AddLayers(&part, branches_[branch],
                double(layers.branches[branch] - layers.forward_branches[branch]));
    part.backward_weight *= layers.weights;
    AddForward(&part, dense_, double(layers.forward_dense));
    AddForward(&part, mixture_, double(layers.forward_mixtures));
    AddForward(&part, encoder_, double(layers.forward_encoders));
    for (int branch = 0; branch < kPlanBranches; ++branch)
      AddForward(&part, branches_[branch], double(layers.forward_branches[branch]));
    parts.positions.push_back(part);
  }
  parts.message = SecondsOfMessage();
  AddHead(&parts.positions.back(), positions.back().head_weights);
  return parts;
}

void Predictor::AddHead(PartSeconds* part, double weights) const {
  part->forward += head_seconds_ / 3;
  part->backward_input += head_seconds_ / 3;
  part->backward_weight += weights * head_seconds_ / 3;
}

StageShape Predictor::AllLayers() const {
  StageShape all;
  all.layers = double(model_.layers());
  all.encoders = double(model_.encoder_layers());
  if (is_hybrid()) all.branches = CountBranches(model_.hybrid_layers());
  return all;
}

StepPrediction Predictor::Predict() const {
  const double first = MixtureShare(true);
  const double others = MixtureShare(false);
  const double slowest = l_.pp == 1 ? first : others;
  StepPrediction step;
  step.seconds = Seconds(slowest, &step.data);
  const LayerCosts mean = MeanOfAll();
  step.model_flops =
      3 * double(l_.micro_batches) / l_.pp * (model_.layers() * mean.flops + HeadFlops());
  const bool has_uneven_ends =
      l_.first_layers != PlanLayout::kAsOthers || l_.last_layers != PlanLayout::kAsOthers;
  const auto add = [&](const StageShape& stage, bool is_first) {
    step.memory_bytes = std::max(step.memory_bytes, MemoryBytes(stage, is_first));
    step.host_bytes = std::max(step.host_bytes, HostBytes(stage, is_first));
  };
  if (stages_.HasSeveralKinds()) {
    for (int64_t number = 0; number < l_.pp; ++number) add(stages_.At(number), number == 0);
  } else {
    add(stages_.First(), true);
    if (l_.pp > 1) add(stages_.Last(), false);
    if (l_.pp > 2 && has_uneven_ends) add(stages_.Inner(), false);
  }
  step.total_parameters = model_.layers() * (mean.parameters * weight_ranks_ +
                                             mean.expert_parameters * l_.ep * l_.etp) +
                          (model_.is_tied() ? 1 : 2) * model_.vocab() * model_.hidden();
  return step;
}

}  // namespace

// With parameters that are shared out, the backward passes of all micro-batches are beside it.
double DataParallelSeconds(const Hardware& gpu, const Implementation& program,
                           const PlanLayout& layout, const DataParallelWork& work) {
  double hideable = 0, others = 0;
  for (const SharedParameters& shared :
       {SharedParameters{DenseCopies(layout), work.parameters, false, 0, work.low_rank_parameters,
                         work.layers},
        SharedParameters{ExpertCopies(layout), work.expert_parameters, true, 0,
                         work.low_rank_expert_parameters, work.mixtures}}) {
    for (const TrafficRow& row : DataTraffic(program, layout, shared)) {
      const double call = TrafficSeconds(gpu, program, row) / row.calls;
      hideable += call * row.hideable_calls;
      others += call * (row.calls - row.hideable_calls);
    }
  }
  if (!program.overlaps_gradients()) return hideable + others;
  const double window = work.window * double(layout.shards_parameters ? layout.micro_batches : 1);
  return ExposedSeconds(gpu, hideable, window, 0.1 * hideable) + others;
}

absl::StatusOr<StepPrediction> PredictStep(const Hardware& gpu, const Implementation& program,
                                           const MeasuredKernels& kernels, const PlanModel& model,
                                           const PlanLayout& layout) {
  MEGATRON_RETURN_IF_ERROR(CheckPlanSizes(gpu, model, layout));
  return Predictor(gpu, program, kernels, model, layout).Predict();
}

absl::StatusOr<PredictedParts> PredictParts(const Hardware& gpu, const Implementation& program,
                                            const MeasuredKernels& kernels, const PlanModel& model,
                                            const PlanLayout& layout,
                                            const std::vector<PartLayers>& positions) {
  MEGATRON_RETURN_IF_ERROR(CheckPlanSizes(gpu, model, layout));
  if (int64_t(positions.size()) != layout.pp * layout.vpp) {
    return absl::InvalidArgumentError("each chunk of each stage has one part of the model");
  }
  return Predictor(gpu, program, kernels, model, layout).Parts(positions);
}

}  // namespace megatron
