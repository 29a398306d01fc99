// The rank that counts a parameter's elements, where several ranks have the same ones.
#ifndef MEGATRON_OPTIM_MAIN_REPLICA_H_
#define MEGATRON_OPTIM_MAIN_REPLICA_H_

#include "megatron/comm/process_groups.h"
#include "megatron/optim/parameter_buffers.h"

namespace megatron {

// Returns whether this rank is the first along the tensor and expert axes of the ranks that have
// the same block of the parameter.
bool IsMainReplica(const Parameter& parameter, const ProcessGroups& groups);

// Returns the elements of the parameter, in the layout, of which this rank is the main replica: the
// one rank that counts them in sums over the world, and saves them; none of a frozen parameter,
// which is in no sum. Of the ranks with the same block, the first along the tensor and expert axes
// is the main replica, and along the data axis each rank for its part of its shard.
FlatRange MainReplicaRange(const ParameterBuffers& buffers, const FlatParameter& flat,
                           const ProcessGroups& groups);
// The same among the ranks with the same data alone: each data-parallel rank has elements of its
// own.
FlatRange MainReplicaOnDataRank(const ParameterBuffers& buffers, const FlatParameter& flat,
                                const ProcessGroups& groups);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_MAIN_REPLICA_H_
