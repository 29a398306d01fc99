#include "megatron/train/trainer/lanes.h"

#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"

namespace megatron {

std::vector<ProcessGroup*> GroupsWithLanes(const TransformerOptions& transformer,
                                           ProcessGroups* groups) {
  std::vector<ProcessGroup*> with_lanes;
  if (groups->tensor.size() > 1) with_lanes.push_back(&groups->tensor);
  if (groups->context.size() > 1) with_lanes.push_back(&groups->context);
  if (groups->pipeline.size() > 1) with_lanes.push_back(&groups->pipeline);
  // With deduplicated dispatch only what goes between hosts runs beside computing.
  ProcessGroup* const experts = groups->expert_model_across_hosts.size() > 1
                                    ? &groups->expert_model_across_hosts
                                    : &groups->expert_model;
  if (transformer.moe.num_experts > 0 && experts->size() > 1) with_lanes.push_back(experts);
  return with_lanes;
}

absl::Status AddLanes(const TransformerOptions& transformer, const Stream& compute,
                      ProcessGroups* groups) {
  for (ProcessGroup* group : GroupsWithLanes(transformer, groups)) {
    MEGATRON_ASSIGN_OR_RETURN(*group, WithAsyncCalls(*group, compute));
  }
  return absl::OkStatus();
}

}  // namespace megatron
