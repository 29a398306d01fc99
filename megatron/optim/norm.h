// The L2 norms of tensors that lie on several ranks.
#ifndef MEGATRON_OPTIM_NORM_H_
#define MEGATRON_OPTIM_NORM_H_

#include "megatron/comm/process_group.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class Norm {
 public:
  Norm(Device device, MemoryLedger* ledger);

  // Returns the norm of a tensor of which each rank of the group has the part x, and `replicas`
  // ranks have the same part; 0 on a meta stream. x is fp32 and flat. The host waits for it, and
  // all ranks of the group get the same number.
  double Of(const Tensor& x, const ProcessGroup& group, int replicas, const Stream& stream) const;

 private:
  Buffer sums_;
  HostMirror mirror_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_NORM_H_
