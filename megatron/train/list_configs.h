// The table of the configurations that come with the programs.
#ifndef MEGATRON_TRAIN_LIST_CONFIGS_H_
#define MEGATRON_TRAIN_LIST_CONFIGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Returns the beginning of the comment at the top of a configuration, without its full stop: up to
// the end of its first sentence, or to a colon.
std::string ConfigSummary(absl::string_view text);

// Returns the names of the shipped configurations of models of this type, as in model.model_type,
// without their extension.
absl::StatusOr<std::vector<std::string>> ConfigsOfModel(absl::string_view model_type);

// Returns one line for each shipped configuration: its name, the kind of model, the number of
// parameters, the layout and the summary.
absl::StatusOr<std::string> ListConfigs();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LIST_CONFIGS_H_
