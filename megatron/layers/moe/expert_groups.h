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
  // For deduplicated dispatch (host_dispatcher.h): the ranks of `model` on this rank's host, which
  // are neighbours there, and those in the same place of every host. Rows then go over these two
  // and not over `model`. Else both are default groups.
  ProcessGroup host, across_hosts;

  bool dispatches_by_host() const { return across_hosts.size() > 1; }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_EXPERT_GROUPS_H_
