// The process groups of mixture-of-experts layers.
#ifndef MEGATRON_LAYERS_MOE_EXPERT_GROUPS_H_
#define MEGATRON_LAYERS_MOE_EXPERT_GROUPS_H_

#include "megatron/comm/process_group.h"

namespace megatron {

// The ranks that share the experts of a pipeline stage.
struct ExpertGroups {
  ProcessGroup expert;  // these hold different experts
  ProcessGroup tensor;  // these hold different parts of the same experts
  // Both of them together: the tensor ranks of the first experts, then those of the next.
  ProcessGroup model;
  ProcessGroup data;  // a group of the dense grid: these hold the other samples of the global batch
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_EXPERT_GROUPS_H_
