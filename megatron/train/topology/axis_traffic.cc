#include "megatron/train/topology/axis_traffic.h"

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/plan/data_traffic.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/step_traffic.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {
namespace {

PartLayers MeanLayers(const PlannedRun& run) {
  const int64_t stages = run.layout.pp, layers = run.model.layers();
  const auto mean = [stages](int64_t count) { return (count + stages - 1) / stages; };
  PartLayers part;
  if (!run.model.hybrid_layers().empty()) {
    part.branches = CountBranches(run.model.hybrid_layers());
    for (int64_t& count : part.branches) count = mean(count);
    return part;
  }
  const int64_t mixtures = run.model.experts() > 0 ? layers - run.model.dense_layers() : 0;
  const int64_t encoders = run.model.encoder_layers();
  part.mixtures = mean(mixtures);
  part.dense = mean(layers - mixtures - encoders);
  part.encoders = mean(encoders);
  return part;
}

TrafficStage MeanStage(const PlannedRun& run) {
  TrafficStage stage;
  stage.layers = MeanLayers(run);
  stage.has_head = run.layout.pp == 1;
  stage.messages = 2 * double(run.layout.micro_batches * run.layout.vpp);
  return stage;
}

// Returns how the ranks of a row lie among all that have the same weights.
void SetRuns(const TrafficRow& row, const PlanGroup& copies, AxisTraffic* traffic) {
  if (row.group.ranks >= copies.ranks) return;
  traffic->is_across = row.group.stride != copies.stride;
  traffic->runs =
      static_cast<int>(traffic->is_across ? row.group.ranks : copies.ranks / row.group.ranks);
}

// Gathers within the hosts of secondary shards are flat, and so is what codes exchange.
void SetHosts(const TrafficRow& row, const PlannedRun& run, AxisTraffic* traffic) {
  const PlanLayout& layout = run.layout;
  const bool is_in_host = layout.hosts > 1 && traffic->runs > 1;
  if (row.axis == TrafficAxis::kData && layout.ranks_per_host > 0 && !is_in_host &&
      row.call != TrafficCall::kAllToAll) {
    traffic->hosts = AxisTraffic::Hosts::kLevels;
  }
  if (row.axis != TrafficAxis::kExpert || !layout.deduplicates_dispatch) return;
  const PlanGroup across = ExpertRowsOf(run.model, layout).across_hosts;
  const bool is_across = row.group.stride == across.stride;
  traffic->hosts = is_across ? AxisTraffic::Hosts::kAcross : AxisTraffic::Hosts::kWithin;
  if (!is_across) return;
  traffic->experts = run.model.experts();
  traffic->choices = run.model.experts_per_token();
  traffic->bytes /= ExpectedHosts(double(across.ranks), traffic->experts, traffic->choices);
}

AxisTraffic ToAxisTraffic(const TrafficRow& row, const PlannedRun& run) {
  AxisTraffic traffic;
  switch (row.axis) {
    case TrafficAxis::kTensor:
      traffic.name = "tp";
      traffic.axes = {Axis::kTensor};
      break;
    case TrafficAxis::kContext:
      traffic.name = "cp";
      traffic.axes = {Axis::kContext};
      break;
    case TrafficAxis::kExpert:
      traffic.name = "ep";
      traffic.axes = {Axis::kTensor, Axis::kExpert};
      break;
    case TrafficAxis::kPipeline:
      traffic.name = "pp";
      traffic.axes = {Axis::kPipeline};
      break;
    case TrafficAxis::kData:
      traffic.name = "dp";
      traffic.axes = {Axis::kData, Axis::kContext};
      SetRuns(row, row.is_of_experts ? ExpertCopies(run.layout) : DenseCopies(run.layout),
              &traffic);
      break;
  }
  traffic.is_of_experts = row.is_of_experts;
  traffic.is_message = row.call == TrafficCall::kMessage;
  traffic.is_exchange = row.call == TrafficCall::kAllToAll;
  traffic.calls = row.calls * (row.call == TrafficCall::kAllReduce ? 2 : 1);
  traffic.bytes = row.bytes;
  SetHosts(row, run, &traffic);
  return traffic;
}

}  // namespace

std::vector<AxisTraffic> TrafficOf(const config::PretrainConfig& config,
                                   int64_t padded_vocab_size) {
  // The planner knows no gates, whose weights are a small part of what is sent.
  config::PretrainConfig without_gates = config;
  without_gates.mutable_model()->clear_attention_output_gate();
  const auto run = ToPlannedRun(without_gates, padded_vocab_size, Implementation());
  // Any other valid configuration can be planned.
  CHECK(run.ok()) << run.status();
  std::vector<AxisTraffic> traffic;
  for (const TrafficRow& row :
       StepTraffic(run->program, run->model, run->layout, MeanStage(*run))) {
    const bool is_of_ends = row.axis == TrafficAxis::kPipeline && row.call != TrafficCall::kMessage;
    const bool is_of_all = absl::string_view(row.what) == kLargestScores;
    if (!is_of_ends && !is_of_all) traffic.push_back(ToAxisTraffic(row, *run));
  }
  return traffic;
}

}  // namespace megatron
