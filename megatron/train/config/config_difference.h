// Finds the fields in which two configurations differ. Both are texts that EffectiveConfigText
// wrote, perhaps followed by lines "name: value".
#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct ConfigDifference {
  std::string field;  // "model.num_layers"
  std::string first,
      other;  // values, those of a repeated field separated by ", "; or "unset"
};

// Returns differences in the order of the texts, except that model.model_type comes before all
// others, which follow from it.
std::vector<ConfigDifference> DifferencesOf(absl::string_view first, absl::string_view other);

// Returns "model.num_layers is 4, on rank 0 2; ..." of the first few, of the other's rank.
std::string DescribeDifferences(const std::vector<ConfigDifference>& differences);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_DIFFERENCE_H_
