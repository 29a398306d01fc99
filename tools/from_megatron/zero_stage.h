// ZeRO stages as fields of the configuration.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_ZERO_STAGE_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_ZERO_STAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/from_megatron/config_builder.h"

namespace megatron {

// Shares out what a ZeRO stage, 0 to 3, shares out.
absl::Status SetZeroStage(int64_t stage, absl::string_view origin, ConfigBuilder* config);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_ZERO_STAGE_H_
