// The fields of a configuration that change how long a step takes, and that predictions don't know.
#ifndef MEGATRON_TRAIN_PLANNING_UNPRICED_FIELDS_H_
#define MEGATRON_TRAIN_PLANNING_UNPRICED_FIELDS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the paths of all fields that predictions don't know.
std::vector<std::string> UnpricedPaths();

// Returns those that cost something in this configuration, as "path=value", on a GPU or a
// processor, whose disk predictions know (KnowsDisk) or don't. `searches`: also those that
// ExplainStep() knows and searches of layouts don't.
std::vector<std::string> UnpricedFields(const config::PretrainConfig& config, bool is_gpu,
                                        bool knows_disk, bool searches = true);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_UNPRICED_FIELDS_H_
