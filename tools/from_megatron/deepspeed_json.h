// The text of a ds_config.json, whoever wrote it.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_JSON_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_JSON_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron {

// Reads one JSON object of at most a megabyte. kInvalidArgument names the line and the column where
// the text stops being JSON, or says what else is wrong: a key that is there twice, or too many
// levels.
absl::Status ParseDeepSpeedJson(absl::string_view text, nlohmann::json* object);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_JSON_H_
