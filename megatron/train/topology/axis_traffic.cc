#include "megatron/train/topology/axis_traffic.h"

#include "glog/logging.h"
#include "megatron/plan/data_traffic.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_traffic.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {
namespace {

TrafficStage MeanStage(const PlannedRun& run) {
  const int64_t stages = run.layout.pp, layers = run.model.layers();
  const int64_t mixtures = run.model.experts() > 0 ? layers - run.model.dense_layers() : 0;
  TrafficStage stage;
  stage.layers.mixtures = (mixtures + stages - 1) / stages;
  const int64_t encoders = run.model.encoder_layers();
  stage.layers.dense = (layers - mixtures - encoders + stages - 1) / stages;
  stage.layers.encoders = (encoders + stages - 1) / stages;
  stage.has_head = stages == 1;
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

AxisTraffic ToAxisTraffic(const TrafficRow& row, const PlanLayout& layout) {
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
      SetRuns(row, row.is_of_experts ? ExpertCopies(layout) : DenseCopies(layout), &traffic);
      break;
  }
  traffic.is_of_experts = row.is_of_experts;
  traffic.is_message = row.call == TrafficCall::kMessage;
  traffic.calls = row.calls * (row.call == TrafficCall::kAllReduce ? 2 : 1);
  traffic.bytes = row.bytes;
  return traffic;
}

}  // namespace

std::vector<AxisTraffic> TrafficOf(const config::PretrainConfig& config,
                                   int64_t padded_vocab_size) {
  const auto run = ToPlannedRun(config, padded_vocab_size, Implementation());
  // A valid configuration can be planned.
  CHECK(run.ok()) << run.status();
  std::vector<AxisTraffic> traffic;
  for (const TrafficRow& row :
       StepTraffic(run->program, run->model, run->layout, MeanStage(*run))) {
    const bool is_of_ends = row.axis == TrafficAxis::kPipeline && row.call != TrafficCall::kMessage;
    if (!is_of_ends) traffic.push_back(ToAxisTraffic(row, run->layout));
  }
  return traffic;
}

}  // namespace megatron
