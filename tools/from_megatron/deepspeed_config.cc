#include "tools/from_megatron/deepspeed_config.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/from_megatron/deepspeed_json.h"
#include "tools/from_megatron/deepspeed_translation.h"

namespace megatron {

absl::Status ApplyDeepSpeedConfig(absl::string_view json, absl::string_view source,
                                  int64_t data_parallel_size, ConfigBuilder* config,
                                  Findings* findings) {
  nlohmann::json object;
  absl::Status status = ParseDeepSpeedJson(json, &object);
  if (status.ok())
    status = DeepSpeedTranslation(source, data_parallel_size, config, findings).Apply(object);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
}

}  // namespace megatron
