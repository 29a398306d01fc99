// An error in a configuration, with its place and the correction that is needed.
//
//   gpt.textproto:12:3: model.num_attention_heads = 12: must be divisible by
//       parallel.tensor_model_parallel_size = 8 (--set parallel.tensor_model_parallel_size=8)
//
// Errors are collected, never thrown one by one: a user who made five mistakes sees five.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_ERROR_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_ERROR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace megatron {

struct ConfigError {
  std::string where;  // "gpt.textproto:12:3", "--set model.num_layers=x", or empty without a place
  std::string field;  // "model.num_layers", or empty for an error of syntax
  std::string value;  // the text that the user wrote, or empty if it would not help
  std::string message;  // the accepted or missing values, and the action to take
};

bool operator==(const ConfigError& a, const ConfigError& b);

// Returns "where: field = value: message", without the parts that are empty.
std::string ToString(const ConfigError& error);

// Returns OK if there is no error, else InvalidArgument with one line for each of the first 50 and
// the number of the others.
absl::Status ToStatus(const std::vector<ConfigError>& errors);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_ERROR_H_
