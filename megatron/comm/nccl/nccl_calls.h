// Calls of a group as calls of NCCL.
#ifndef MEGATRON_COMM_NCCL_NCCL_CALLS_H_
#define MEGATRON_COMM_NCCL_NCCL_CALLS_H_

#include "absl/types/span.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/nccl/nccl_api.h"

namespace megatron {

// Any call but a barrier. `size` is the group's.
NcclResult NcclCall(NcclApi* api, const CollectiveCall& call, int size, ncclComm* comm,
                    const Stream& stream);

// All of these at once. Messages to one peer arrive in the order given; those of no bytes are not
// sent.
NcclResult NcclExchange(NcclApi* api, absl::Span<const Transfer> sends,
                        absl::Span<const Transfer> receives, ncclComm* comm, const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_NCCL_CALLS_H_
