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

FlatRange MainReplicaRange(const ParameterBuffers& buffers, const FlatParameter& flat,
                           const ProcessGroups& groups) {
  const Bucket& bucket = buffers.bucket_of(flat);
  if (bucket.section == Section::kCopies || !IsMainReplica(*flat.parameter, groups)) {
    return {flat.range.begin, flat.range.begin};
  }
  return Common(flat.range, bucket.part);
}

}  // namespace megatron
