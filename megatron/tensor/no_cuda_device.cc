// The form of cuda_device.cc in a build without CUDA. A test may link a device of its own instead
// (emulated_cuda.h): it defines all of these functions, and the linker takes this object from its
// archive only for functions that are not defined yet.
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

int CudaDeviceCount() { return 0; }
CudaDeviceFacts CudaFacts(int) { NoCuda(); }
CudaMemory CudaMemoryOf(int) { NoCuda(); }
void UseCudaDevice(int) { NoCuda(); }
std::string CudaPciBusId(int) { NoCuda(); }
void* CudaAllocate(int, int64_t, const std::string&) { NoCuda(); }
void CudaFree(int, void*) { NoCuda(); }
void* CudaAllocateHost(int64_t, std::string*) { NoCuda(); }
void CudaFreeHost(void*) { NoCuda(); }
CudaStream::CudaStream(int device) : device_(device) { NoCuda(); }
CudaStream::~CudaStream() {}
void* CudaStream::Workspace(int64_t) { NoCuda(); }
void CudaStream::KeepWorkspaces() { NoCuda(); }
void CudaStream::FreeWorkspaces() {}
void CudaStream::Synchronize() { NoCuda(); }
CudaEvent::CudaEvent(int, bool) { NoCuda(); }
CudaEvent::~CudaEvent() {}
void CudaEvent::Record(const CudaStream&) { NoCuda(); }
bool CudaEvent::Reached() const { NoCuda(); }
void CudaEvent::Wait() const { NoCuda(); }
void CudaEvent::HoldBack(const CudaStream&) const { NoCuda(); }
int64_t CudaEvent::Nanoseconds(const CudaEvent&, const CudaEvent&) { NoCuda(); }
void PushCudaRange(const std::string&) { NoCuda(); }
void PopCudaRange() { NoCuda(); }
void RecordUpdateBeside(double, const CudaEvent&) { NoCuda(); }
void StartCudaProfiler() { NoCuda(); }
void StopCudaProfiler() { NoCuda(); }
void CopyOnCuda(CudaStream*, const Tensor&, const Tensor&) { NoCuda(); }
void EnqueueCopyOnCuda(CudaStream*, const Tensor&, const Tensor&) { NoCuda(); }

}  // namespace megatron
