#include "megatron/optim/main_replica.h"

namespace megatron {

bool IsMainReplica(const Parameter& parameter, const ProcessGroups& groups) {
  const Sharding& sharding = parameter.sharding;
  const bool cut_over_tensor = sharding.sharded.contains(Axis::kTensor);
  if (!sharding.expert_grid) {
    return groups.tensor.rank() %
               (cut_over_tensor ? sharding.tensor_replicas : groups.tensor.size()) ==
           0;
  }
  return (cut_over_tensor || groups.expert_tensor.rank() == 0) &&
         (sharding.sharded.contains(Axis::kExpert) || groups.expert.rank() == 0);
}

FlatRange MainReplicaOnDataRank(const ParameterBuffers& buffers, const FlatParameter& flat,
                                const ProcessGroups& groups) {
  const Section section = buffers.bucket_of(flat).section;
  if (section == Section::kCopies || IsFrozen(section) || !IsMainReplica(*flat.parameter, groups)) {
    return {flat.range.begin, flat.range.begin};
  }
  return flat.range;
}

FlatRange MainReplicaRange(const ParameterBuffers& buffers, const FlatParameter& flat,
                           const ProcessGroups& groups) {
  return Common(MainReplicaOnDataRank(buffers, flat, groups), buffers.bucket_of(flat).part);
}

}  // namespace megatron
