// A count of calls of operator new, for tests that steady steps allocate nothing. It replaces
// operator new in every program that links it.
#ifndef MEGATRON_OPS_ALLOCATION_COUNTER_H_
#define MEGATRON_OPS_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace megatron::ops {

// Number of calls so far, of all threads.
int64_t AllocationCount();

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ALLOCATION_COUNTER_H_
