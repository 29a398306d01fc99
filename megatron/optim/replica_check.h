// ReplicaCheck: whether the ranks that should hold the same weights do.
//
//   ReplicaCheck check(buffers, groups, &ledger);
//   MEGATRON_RETURN_IF_ERROR(check.Check(stream));   // all ranks, when the weights have arrived
//
// Updates are computed once, or alike by ranks whose inputs are alike, so replicas have the same
// bits. Where they have not, a processor, a memory or a link made an error that nothing else has
// found, and training goes on with wrong gradients. A checksum of each parameter is compared, over
// data-parallel and context-parallel ranks or those of optimizer instances where weights are
// sharded, over tensor-parallel ranks for what these do not cut, and between the stages that hold a
// tied embedding that is not sharded. What one rank alone holds, as main weights of ZeRO, has no
// replica.
#ifndef MEGATRON_OPTIM_REPLICA_CHECK_H_
#define MEGATRON_OPTIM_REPLICA_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/process_groups.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class ReplicaCheck {
 public:
  // The buffers must outlive this.
  ReplicaCheck(const ParameterBuffers& buffers, const ProcessGroups& groups, MemoryLedger* ledger);

  // Returns whether there are any replicas, on this rank.
  bool empty() const { return comparisons_.empty(); }
  // Collective over all ranks. Waits for the stream. The error of kind kDataLoss names a parameter
  // and the ranks whose weights are not those of most ranks; the ranks of other groups get no
  // error.
  absl::Status Check(const Stream& stream);

 private:
  // Parameters of which all ranks of a group hold the same elements.
  struct Comparison {
    ProcessGroup group;
    std::vector<size_t> parameters;  // indices of buffers.parameters()
    Buffer memory;
    // The rank's number in the world and its checksums; int32 [1 + parameters], and of all ranks.
    Tensor mine_P, all_RP;
    HostMirror host_mine, host_all;
  };
  template <typename Wanted>
  void Add(const ProcessGroup& group, MemoryLedger* ledger, Wanted wanted);
  uint32_t ChecksumOf(const FlatParameter& flat, const Stream& stream) const;
  absl::Status Compare(const Comparison& comparison) const;

  const ParameterBuffers& buffers_;
  const int world_rank_;
  std::vector<Comparison> comparisons_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_REPLICA_CHECK_H_
