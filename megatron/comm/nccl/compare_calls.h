// Comparison of the calls of all ranks, over a communicator of host tensors.
#ifndef MEGATRON_COMM_NCCL_COMPARE_CALLS_H_
#define MEGATRON_COMM_NCCL_COMPARE_CALLS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace megatron {

class Communicator;
struct CollectiveCall;

// Collective. `number` counts the group's calls. The error names what each rank calls; it is the
// communicator's own where that has failed.
absl::Status CompareCalls(Communicator* host, const CollectiveCall& call, uint64_t number);

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_COMPARE_CALLS_H_
