#include "megatron/models/generator_setup.h"

#include "megatron/models/model_stage.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {

StagePlan PlanPrediction(const GeneratorSetup& setup) {
  const StagePlacement& placement = setup.stage->placement();
  InterleavedOptions schedule;
  schedule.stages = setup.pipeline.size();
  schedule.chunks = placement.chunks;
  return PlanStage(ForwardSchedule(schedule, placement.order), setup.pipeline.rank());
}

}  // namespace megatron
