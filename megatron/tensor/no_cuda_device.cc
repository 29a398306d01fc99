// What stands for cuda_device.cc in a build without CUDA.

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
void* CudaAllocate(int, int64_t, const std::string&) { NoCuda(); }
void CudaFree(int, void*) { NoCuda(); }
CudaStream::CudaStream(int device) : device_(device) { NoCuda(); }
CudaStream::~CudaStream() = default;
void* CudaStream::Workspace(int64_t) { NoCuda(); }
void CudaStream::Synchronize() { NoCuda(); }
void CopyOnCuda(CudaStream*, const Tensor&, const Tensor&) { NoCuda(); }

}  // namespace megatron
