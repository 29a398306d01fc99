// Checks every rule that the values of a configuration must keep, alone and together.

#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_H_

#include <vector>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_locations.h"

namespace megatron {

enum class ConfigPurpose {
  kRun,     // training by this program: refuses layouts and devices that it cannot run
  kDryRun,  // planning: accepts any valid layout
};

// Returns all errors at once: first those of single fields in the order of the schema, then those
// of rules between fields. If two fields disagree, the message names both and both places. A field
// that `locations` calls broken was reported before: it and the rules that need it are passed over.
// Reads no files. For kDryRun it does not look at the machine; for kRun it finds out which GPUs and
// libraries are there, and judges rules about system.device by the device that the run will take
// where it is unset. `config` may have its computed fields set (config_defaults.h) or not.
std::vector<ConfigError> Validate(const config::PretrainConfig& config,
                                  const ConfigLocations& locations,
                                  ConfigPurpose purpose = ConfigPurpose::kRun);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_H_
