#include "tools/calibration/planned_layout.h"

#include <cstdint>

#include "megatron/base/status_macros.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

constexpr int64_t kPaddedVocab = 384;  // bytes and the end of a document, padded

}  // namespace

absl::StatusOr<double> PlannedLayout::Seconds(const Implementation& program,
                                              const MeasuredKernels& kernels) const {
  Implementation its = run.program;
  its.set_measured_efficiency(program.measured_efficiency());
  its.set_step_seconds(program.step_seconds());
  its.set_gated_memory_efficiency(program.gated_memory_efficiency());
  its.set_threads_efficiency(program.threads_efficiency());
  its.set_turn_cost(program.turn_cost());
  its.set_turn_seconds(program.turn_seconds());
  its.set_routing_seconds(program.routing_seconds());
  its.set_expert_wait(program.expert_wait());
  MEGATRON_ASSIGN_OR_RETURN(const StepPrediction step,
                            PredictStep(hardware, its, kernels, run.model, run.layout));
  return step.seconds.total;
}

absl::StatusOr<PlannedLayout> PlanCheckedLayout(const std::string& config,
                                                const CheckedLayout& layout,
                                                const Implementation& program,
                                                const Hardware& hardware) {
  MEGATRON_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfigFromString(config, layout.model, layout.overrides, ConfigPurpose::kRun));
  PlannedLayout planned;
  MEGATRON_ASSIGN_OR_RETURN(planned.run, ToPlannedRun(loaded.config, kPaddedVocab, program));
  planned.hardware = HardwareOfRun(loaded.config, planned.run.layout.gpus(), hardware);
  return planned;
}

}  // namespace megatron
