#include "tools/from_megatron/zero_stage.h"

#include "megatron/base/status_macros.h"

namespace megatron {

absl::Status SetZeroStage(int64_t stage, absl::string_view origin, ConfigBuilder* config) {
  MEGATRON_RETURN_IF_ERROR(
      config->Set("parallel.use_distributed_optimizer", {stage > 0 ? "true" : "false"}, origin));
  config->Clear("parallel.data_parallel_sharding_strategy");
  if (stage < 2) return absl::OkStatus();
  return config->Set("parallel.data_parallel_sharding_strategy",
                     {stage == 2 ? "optim_grads" : "optim_grads_params"}, origin);
}

}  // namespace megatron
