#include "tools/report/planned_memory.h"

#include "megatron/base/status_macros.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron::report {

absl::StatusOr<std::vector<std::map<std::string, int64_t>>> PlanMemory(
    const std::string& config_text, int64_t vocabulary) {
  MEGATRON_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfigFromString(config_text, "the run's configuration", {}, ConfigPurpose::kDryRun));
  MEGATRON_ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(ToRunOptions(loaded.config, vocabulary)));
  std::vector<std::map<std::string, int64_t>> stages;
  for (const RankPlan& stage : plan.stages) stages.push_back(stage.memory);
  return stages;
}

}  // namespace megatron::report
