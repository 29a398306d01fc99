// Messages of the emulation to the sanitizers that a binary is linked with. Without sanitizers they
// do nothing.
#ifndef MEGATRON_OPS_CUDA_EMULATION_SANITIZERS_H_
#define MEGATRON_OPS_CUDA_EMULATION_SANITIZERS_H_

#include <cstddef>

namespace megatron::emulation {

// ThreadSanitizer.
bool RacesAreFound();
void* MakeThread();     // null where races are not found
void* RunningThread();  // likewise
// From now on, accesses count as that thread's. This orders nothing.
void SwitchToThread(void* thread);
// A thread's accesses before its Release happen before others' accesses after a later Acquire.
void Release(const void* at);
void Acquire(const void* at);

// AddressSanitizer: whether the memory may be accessed.
bool BoundsAreChecked();
void Forbid(const void* begin, size_t bytes);
void Permit(const void* begin, size_t bytes);

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_SANITIZERS_H_
