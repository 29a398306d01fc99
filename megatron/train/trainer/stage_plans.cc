#include "megatron/train/trainer/stage_plans.h"

#include <algorithm>

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

StagePlan StagePlans::MakeWithSlotsForAll(const std::vector<int64_t>& micro_batches) const {
  StagePlan plan = Make(micro_batches.back());
  for (size_t i = 0; i + 1 < micro_batches.size(); ++i) {
    const StagePlan other = Make(micro_batches[i]);
    for (const auto slots : {&StagePlan::slots, &StagePlan::input_slots, &StagePlan::gradient_slots,
                             &StagePlan::deferred_slots}) {
      for (int chunk = 0; chunk < plan.chunks(); ++chunk)
        (plan.*slots)[chunk] = std::max((plan.*slots)[chunk], (other.*slots)[chunk]);
    }
  }
  return plan;
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
