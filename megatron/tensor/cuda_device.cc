#include "megatron/tensor/cuda_device.h"

#include <cublasLt.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cstring>

#include "glog/logging.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

void Check(cudaError_t error, const char* call) {
  CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorName(error) << ", "
                              << cudaGetErrorString(error);
}

#define MEGATRON_CHECK_CUDA(call) Check(call, #call)

// The device that this thread has made its current one; -1: none yet.
thread_local int current_device = -1;

cudaError_t MakeCurrent(int device) {
  const cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) current_device = device;
  return error;
}

// Makes a device current for a block, and for longer in a thread that had chosen none: CUDA calls
// the first one current there, and to go back to it would make a context on it.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device) {
    MEGATRON_CHECK_CUDA(MakeCurrent(device));
  }
  ~OnDevice() {
    if (before_ >= 0) MEGATRON_CHECK_CUDA(MakeCurrent(before_));
  }

 private:
  const int before_;
};

cudaStream_t Handle(const CudaStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
cudaEvent_t Handle(const CudaEvent& event) { return static_cast<cudaEvent_t>(event.handle()); }

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

CudaDeviceFacts CudaFacts(int device) {
  cudaDeviceProp properties;
  MEGATRON_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  return {properties.name, std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes)),
          10 * properties.major + properties.minor};
}

CudaMemory CudaMemoryOf(int device) {
  const int before = current_device;
  size_t free = 0, total = 0;
  if (MakeCurrent(device) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();  // Later calls do not meet the error again.
    free = total = 0;
  }
  if (before >= 0) MEGATRON_CHECK_CUDA(MakeCurrent(before));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void UseCudaDevice(int device) {
  if (MakeCurrent(device) != cudaSuccess) cudaGetLastError();  // The next call meets it again.
}

std::string CudaPciBusId(int device) {
  char id[32] = {};
  MEGATRON_CHECK_CUDA(cudaDeviceGetPCIBusId(id, sizeof(id), device));
  return id;
}

void* CudaAllocate(int device, int64_t bytes, const std::string& name) {
  const OnDevice current(device);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  CHECK(error != cudaErrorMemoryAllocation)
      << "out of memory on cuda:" << device << ": " << bytes << " bytes for " << name;
  Check(error, "cudaMalloc");
  MEGATRON_CHECK_CUDA(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), cudaStreamLegacy));
  // It does not wait for the whole device, of which another thread may be capturing a stream.
  MEGATRON_CHECK_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  return memory;
}

void CudaFree(int device, void* memory) {
  const OnDevice current(device);
  MEGATRON_CHECK_CUDA(cudaFree(memory));
}

void* CudaAllocateHost(int64_t bytes, std::string* error) {
  void* memory = nullptr;
  const cudaError_t result = cudaMallocHost(&memory, static_cast<size_t>(bytes));
  if (result != cudaSuccess) {
    cudaGetLastError();  // Later calls do not meet the error again.
    *error = cudaGetErrorString(result);
    return nullptr;
  }
  std::memset(memory, 0, static_cast<size_t>(bytes));
  return memory;
}

void CudaFreeHost(void* memory) { MEGATRON_CHECK_CUDA(cudaFreeHost(memory)); }

CudaStream::CudaStream(int device) : device_(device) {
  MEGATRON_CHECK_CUDA(MakeCurrent(device));
  cudaStream_t handle;
  MEGATRON_CHECK_CUDA(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
  handle_ = handle;
  cublasLtHandle_t blas;
  CHECK_EQ(cublasLtCreate(&blas), CUBLAS_STATUS_SUCCESS);
  blas_ = blas;
}

CudaStream::~CudaStream() {
  Synchronize();
  const OnDevice current(device_);
  FreeWorkspaces();
  CHECK_EQ(cublasLtDestroy(static_cast<cublasLtHandle_t>(blas_)), CUBLAS_STATUS_SUCCESS);
  MEGATRON_CHECK_CUDA(cudaStreamDestroy(Handle(*this)));
}

void CudaStream::FreeWorkspaces() {
  if (workspace_ != nullptr) CudaFree(device_, workspace_);
  for (void* workspace : outgrown_) CudaFree(device_, workspace);
}

void* CudaStream::Workspace(int64_t bytes) {
  if (bytes > workspace_bytes_) {
    cudaStreamCaptureStatus capture;
    MEGATRON_CHECK_CUDA(cudaStreamIsCapturing(Handle(*this), &capture));
    CHECK(capture == cudaStreamCaptureStatusNone)
        << "an operation that is captured wants " << bytes << " bytes of workspace, and there are "
        << workspace_bytes_;
    Synchronize();
    if (keeps_workspaces_ && workspace_ != nullptr) {
      outgrown_.push_back(workspace_);
    } else if (workspace_ != nullptr) {
      CudaFree(device_, workspace_);
    }
    workspace_ = CudaAllocate(device_, bytes, "workspace of a stream");
    workspace_bytes_ = bytes;
  }
  return workspace_;
}

void CudaStream::KeepWorkspaces() { keeps_workspaces_ = true; }

void CudaStream::Synchronize() { MEGATRON_CHECK_CUDA(cudaStreamSynchronize(Handle(*this))); }

CudaEvent::CudaEvent(int device, bool timed) {
  const OnDevice current(device);
  cudaEvent_t handle;
  MEGATRON_CHECK_CUDA(
      cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming));
  handle_ = handle;
}

CudaEvent::~CudaEvent() { MEGATRON_CHECK_CUDA(cudaEventDestroy(Handle(*this))); }

void CudaEvent::Record(const CudaStream& stream) {
  MEGATRON_CHECK_CUDA(cudaEventRecord(Handle(*this), Handle(stream)));
}

bool CudaEvent::Reached() const {
  const cudaError_t state = cudaEventQuery(Handle(*this));
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // kept like an error, and returned to whoever asks next
    return false;
  }
  Check(state, "cudaEventQuery");
  return true;
}

void CudaEvent::Wait() const { MEGATRON_CHECK_CUDA(cudaEventSynchronize(Handle(*this))); }

void CudaEvent::HoldBack(const CudaStream& stream) const {
  MEGATRON_CHECK_CUDA(cudaStreamWaitEvent(Handle(stream), Handle(*this), 0));
}

int64_t CudaEvent::Nanoseconds(const CudaEvent& from, const CudaEvent& to) {
  float milliseconds = 0;
  MEGATRON_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, Handle(from), Handle(to)));
  return static_cast<int64_t>(double{milliseconds} * 1e6);
}

void PushCudaRange(const std::string& name) { nvtxRangePushA(name.c_str()); }
void PopCudaRange() { nvtxRangePop(); }
void RecordUpdateBeside(double, const CudaEvent&) {}
void StartCudaProfiler() { MEGATRON_CHECK_CUDA(cudaProfilerStart()); }
void StopCudaProfiler() { MEGATRON_CHECK_CUDA(cudaProfilerStop()); }

void EnqueueCopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out) {
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.shape(), out.shape());
  CHECK(in.is_contiguous() && out.is_contiguous()) << in << " to " << out;
  const Device here = {DeviceType::kCuda, stream->device()};
  CHECK(in.device() == here || out.device() == here) << in << " to " << out;
  for (const Tensor* x : {&in, &out}) {
    CHECK(x->device() == here || x->device().type == DeviceType::kCpu) << *x;
  }
  if (in.bytes() == 0) return;
  MEGATRON_CHECK_CUDA(cudaMemcpyAsync(out.raw(), in.raw(), static_cast<size_t>(in.bytes()),
                                      cudaMemcpyDefault, Handle(*stream)));
}

void CopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out) {
  EnqueueCopyOnCuda(stream, in, out);
  if (in.device() != out.device()) stream->Synchronize();
}

}  // namespace megatron
