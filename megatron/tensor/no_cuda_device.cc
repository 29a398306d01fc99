// The form of cuda_device.cc in a build without CUDA. Its symbols are weak, so that a test may link
// a device of its own (emulated_cuda.h).
#include <cstdlib>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

[[noreturn]] void NoCuda() {
  LOG(FATAL) << "this program was built without CUDA: build it with --config=cuda";
  std::abort();
}

}  // namespace

#define MEGATRON_WEAK __attribute__((weak))

MEGATRON_WEAK int CudaDeviceCount() { return 0; }
MEGATRON_WEAK CudaDeviceFacts CudaFacts(int) { NoCuda(); }
MEGATRON_WEAK void* CudaAllocate(int, int64_t, const std::string&) { NoCuda(); }
MEGATRON_WEAK void CudaFree(int, void*) { NoCuda(); }
MEGATRON_WEAK void* CudaAllocateHost(int64_t, const std::string&) { NoCuda(); }
MEGATRON_WEAK void CudaFreeHost(void*) { NoCuda(); }
MEGATRON_WEAK CudaStream::CudaStream(int device) : device_(device) { NoCuda(); }
MEGATRON_WEAK CudaStream::~CudaStream() {}
MEGATRON_WEAK void* CudaStream::Workspace(int64_t) { NoCuda(); }
MEGATRON_WEAK void CudaStream::KeepWorkspaces() { NoCuda(); }
MEGATRON_WEAK void CudaStream::FreeWorkspaces() {}
MEGATRON_WEAK void CudaStream::Synchronize() { NoCuda(); }
MEGATRON_WEAK CudaEvent::CudaEvent(int, bool) { NoCuda(); }
MEGATRON_WEAK CudaEvent::~CudaEvent() {}
MEGATRON_WEAK void CudaEvent::Record(const CudaStream&) { NoCuda(); }
MEGATRON_WEAK bool CudaEvent::Reached() const { NoCuda(); }
MEGATRON_WEAK void CudaEvent::Wait() const { NoCuda(); }
MEGATRON_WEAK void CudaEvent::HoldBack(const CudaStream&) const { NoCuda(); }
MEGATRON_WEAK int64_t CudaEvent::Nanoseconds(const CudaEvent&, const CudaEvent&) { NoCuda(); }
MEGATRON_WEAK void PushCudaRange(const std::string&) { NoCuda(); }
MEGATRON_WEAK void PopCudaRange() { NoCuda(); }
MEGATRON_WEAK void StartCudaProfiler() { NoCuda(); }
MEGATRON_WEAK void StopCudaProfiler() { NoCuda(); }
MEGATRON_WEAK void CopyOnCuda(CudaStream*, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void EnqueueCopyOnCuda(CudaStream*, const Tensor&, const Tensor&) { NoCuda(); }

}  // namespace megatron
