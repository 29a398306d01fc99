#include "megatron/ops/cuda/emulation/sanitizers.h"

// The functions of the sanitizers' runtimes (sanitizer/tsan_interface.h, asan_interface.h). They
// are null in a binary that is linked without them: this file is compiled once for all binaries.
extern "C" {
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* at);
__attribute__((weak)) void __tsan_release(void* at);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* begin, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);
}

namespace megatron::emulation {
namespace {

constexpr unsigned kSwitchWithoutOrder = 1;  // __tsan_switch_to_fiber_no_sync

}  // namespace

bool RacesAreFound() { return __tsan_create_fiber != nullptr; }

void* MakeThread() { return RacesAreFound() ? __tsan_create_fiber(0) : nullptr; }

void* RunningThread() { return RacesAreFound() ? __tsan_get_current_fiber() : nullptr; }

void SwitchToThread(void* thread) {
  if (RacesAreFound()) __tsan_switch_to_fiber(thread, kSwitchWithoutOrder);
}

void Release(const void* at) {
  if (RacesAreFound()) __tsan_release(const_cast<void*>(at));
}

void Acquire(const void* at) {
  if (RacesAreFound()) __tsan_acquire(const_cast<void*>(at));
}

bool BoundsAreChecked() { return __asan_poison_memory_region != nullptr; }

void Forbid(const void* begin, size_t bytes) {
  if (BoundsAreChecked()) __asan_poison_memory_region(begin, bytes);
}

void Permit(const void* begin, size_t bytes) {
  if (BoundsAreChecked()) __asan_unpoison_memory_region(begin, bytes);
}

}  // namespace megatron::emulation
