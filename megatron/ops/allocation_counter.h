// Counts calls of operator new, to show that steady steps allocate nothing. Link it into a test and
// the whole program's operator new is the counting one.
#ifndef MEGATRON_OPS_ALLOCATION_COUNTER_H_
#define MEGATRON_OPS_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace megatron::ops {

// Calls so far, of all threads.
int64_t AllocationCount();

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ALLOCATION_COUNTER_H_
