// The plans of one pipeline stage for its steps.
#ifndef MEGATRON_TRAIN_TRAINER_STAGE_PLANS_H_
#define MEGATRON_TRAIN_TRAINER_STAGE_PLANS_H_

#include <cstdint>
#include <vector>

#include "megatron/models/stage_placement.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {

class StagePlans {
 public:
  // `group` is InterleavedOptions::group, `costs` are those of the parts of the model.
  StagePlans(ScheduleKind kind, int group, const StagePlacement& placement, const PartCosts& costs)
      : kind_(kind), group_(group), placement_(placement), costs_(costs) {}

  // Returns the schedule of a training step of so many micro-batches.
  Schedule ScheduleOf(int64_t micro_batches) const;
  // Returns this stage's plan for it.
  StagePlan Make(int64_t micro_batches) const;
  // Returns the plan for the last of these numbers, with as many slots as a step of any of them
  // needs: shorter steps may need more slots of some kinds.
  StagePlan MakeWithSlotsForAll(const std::vector<int64_t>& micro_batches) const;
  // Returns Make's plan, which stays as it is until it is asked for another number.
  const StagePlan& Of(int64_t micro_batches);
  // Returns this stage's plan for forwards alone.
  StagePlan Forward(int64_t micro_batches) const;
  // Returns the plans of all stages for as many micro-batches as Of() was asked for last.
  std::vector<StagePlan> OfAllStages() const;

 private:
  ScheduleOptions OptionsFor(int64_t micro_batches) const;

  const ScheduleKind kind_;
  const int group_;
  const StagePlacement placement_;
  const PartCosts costs_;
  StagePlan last_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_STAGE_PLANS_H_
