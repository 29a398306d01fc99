// Finds the fields in which two configurations differ. Both are texts that EffectiveConfigText
// wrote, perhaps with lines "name: value" behind them.
#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct ConfigDifference {
  std::string field;  // "model.num_layers"
  std::string first,
      other;  // values; of a repeated field with ", " between; "unset" where it is not
};

// Returns differences in the order of the texts, but model.model_type before all others, which
// follow from it.
std::vector<ConfigDifference> DifferencesOf(absl::string_view first, absl::string_view other);

// "model.num_layers is 4, on rank 0 2; ..." of the first few, of the other's rank.
std::string DescribeDifferences(const std::vector<ConfigDifference>& differences);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_
