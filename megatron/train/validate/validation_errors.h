// The errors that Validate() finds in configurations, for its tests.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_

#include <string>
#include <utility>
#include <vector>

#include "megatron/train/validate/validate.h"

namespace megatron {

using ConfigOverrides = std::vector<std::string>;  // "model.num_layers=2"

// A configuration that is valid.
inline constexpr char kGoodConfig[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

// Returns the errors of `config`, a text that parses, with these overrides.
std::vector<std::string> ErrorsOf(const std::string& config, const ConfigOverrides& overrides,
                                  ConfigPurpose purpose = ConfigPurpose::kDryRun);

// Expects of each case that an error has its text.
void ExpectEachIsRefused(const std::string& config,
                         const std::vector<std::pair<ConfigOverrides, std::string>>& cases);

// Expects of each case, overrides of kGoodConfig, that it has one error, which has its text.
void ExpectOnlyError(const std::vector<std::pair<ConfigOverrides, std::string>>& cases);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATION_ERRORS_H_
