// Translates DeepSpeed's ds_config.json.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_CONFIG_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/from_megatron/config_builder.h"
#include "tools/from_megatron/findings.h"

namespace megatron {

// Sets the fields that the JSON text speaks of, which win over those that are set already, and
// adds findings. `data_parallel_size` is 0 if it is not known; it is then taken from the batch
// sizes, if they say it, and set. Returns kInvalidArgument for what is no ds_config.json.
absl::Status ApplyDeepSpeedConfig(absl::string_view json, absl::string_view source,
                                  int64_t data_parallel_size, ConfigBuilder* config,
                                  Findings* findings);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_CONFIG_H_
