#include "megatron/train/trainer/stage_plans.h"

namespace megatron {

ScheduleOptions StagePlans::OptionsFor(int64_t micro_batches) const {
  ScheduleOptions schedule;
  schedule.kind = kind_;
  schedule.stages = placement_.stages;
  schedule.microbatches = static_cast<int>(micro_batches);
  schedule.chunks = placement_.chunks;
  schedule.group = group_;
  schedule.costs = costs_.Mean();
  schedule.first_trained = placement_.first_trained;
  return schedule;
}

Schedule StagePlans::ScheduleOf(int64_t micro_batches) const {
  return MakeSchedule(OptionsFor(micro_batches));
}

StagePlan StagePlans::Make(int64_t micro_batches) const {
  return PlanStage(ScheduleOf(micro_batches), placement_.stage, costs_);
}

const StagePlan& StagePlans::Of(int64_t micro_batches) {
  if (last_.microbatches != micro_batches || last_.steps.empty()) last_ = Make(micro_batches);
  return last_;
}

StagePlan StagePlans::Forward(int64_t micro_batches) const {
  return PlanStage(MakeForwards(OptionsFor(micro_batches)), placement_.stage, costs_);
}

std::vector<StagePlan> StagePlans::OfAllStages() const {
  return PlanStages(ScheduleOf(last_.microbatches), costs_);
}

}  // namespace megatron
