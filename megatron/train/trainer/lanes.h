// The groups of a rank whose calls run beside computing (comm/overlap/async_group.h).
#ifndef MEGATRON_TRAIN_TRAINER_LANES_H_
#define MEGATRON_TRAIN_TRAINER_LANES_H_

#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/process_groups.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// Returns the groups of several ranks whose calls layers or the pipeline start beside computing.
std::vector<ProcessGroup*> GroupsWithLanes(const TransformerOptions& transformer,
                                           ProcessGroups* groups);

// Gives these groups their lanes. Collective over each of them.
absl::Status AddLanes(const TransformerOptions& transformer, const Stream& compute,
                      ProcessGroups* groups);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_LANES_H_
