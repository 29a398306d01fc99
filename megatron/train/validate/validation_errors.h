// The errors that Validate() finds in configurations, for its tests.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_

#include <string>
#include <utility>
#include <vector>

#include "megatron/train/validate/validate.h"

namespace megatron {

using ConfigOverrides = std::vector<std::string>;  // "model.num_layers=2"

// Returns the errors of `config`, a text that parses, with these overrides.
std::vector<std::string> ErrorsOf(const std::string& config, const ConfigOverrides& overrides,
                                  ConfigPurpose purpose = ConfigPurpose::kDryRun);

// Expects of each case that an error has its text.
void ExpectEachIsRefused(const std::string& config,
                         const std::vector<std::pair<ConfigOverrides, std::string>>& cases);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_
