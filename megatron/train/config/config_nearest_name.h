// Guesses what a mistyped name meant.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `name`, case and '-' against '_' aside, the first of several equally
// near; empty where none is near enough to be what was meant.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_NEAREST_NAME_H_
