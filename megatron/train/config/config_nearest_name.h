// Guesses what a mistyped name meant.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn `a`
// into `b` (optimal string alignment distance).
int EditDistance(absl::string_view a, absl::string_view b);

// Returns the candidate nearest to `name`, ignoring case and taking '-' for '_'; the first of
// several equally near ones; empty if none is near enough.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_
