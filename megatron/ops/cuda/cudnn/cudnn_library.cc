#ifdef MEGATRON_CUDNN
#include "megatron/ops/cuda/cudnn/cudnn_library.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron::ops::cuda {
namespace {

constexpr char kName[] = "libcudnn.so.9";
// Since 9.6, the log-sum-exp of packed sequences is packed, too.
constexpr int64_t kOldest = 90600;

struct Library {
  void* handle = nullptr;
  std::string problem;  // the error of loading it
};

const Library& TheLibrary() {
  static const Library* const library = [] {
    auto* const loaded = new Library;
    loaded->handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (loaded->handle == nullptr) loaded->problem = dlerror();
    return loaded;
  }();
  return *library;
}

template <typename Function>
Function* Find(const char* name) {
  CHECK(TheLibrary().handle != nullptr) << TheLibrary().problem;
  void* const function = dlsym(TheLibrary().handle, name);
  CHECK(function != nullptr) << kName << " has no " << name;
  return reinterpret_cast<Function*>(function);
}

}  // namespace

absl::StatusOr<int64_t> LoadCudnn() {
  if (TheLibrary().handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuDNN is not there (", TheLibrary().problem,
                     "): install the package cudnn9-cuda-13, or nvidia-cudnn-cu13 for Python, and "
                     "where it is in "
                     "no standard place put the folder of ",
                     kName, " into LD_LIBRARY_PATH"));
  }
  const auto version = static_cast<int64_t>(cudnnGetVersion());
  if (version < kOldest) {
    return absl::FailedPreconditionError(absl::StrCat(
        kName, " is of version ", version, "; 9.6.0 (", kOldest, ") or later is needed"));
  }
  return version;
}

}  // namespace megatron::ops::cuda

#define MEGATRON_CUDNN_FUNCTION(name)                                               \
  (*[] {                                                                            \
    static auto* const function = megatron::ops::cuda::Find<decltype(name)>(#name); \
    return function;                                                                \
  }())

extern "C" {

size_t cudnnGetVersion() { return MEGATRON_CUDNN_FUNCTION(cudnnGetVersion)(); }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return MEGATRON_CUDNN_FUNCTION(cudnnGetErrorString)(status);
}

void cudnnGetLastErrorString(char* message, size_t size) {
  MEGATRON_CUDNN_FUNCTION(cudnnGetLastErrorString)(message, size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return MEGATRON_CUDNN_FUNCTION(cudnnCreate)(handle);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return MEGATRON_CUDNN_FUNCTION(cudnnDestroy)(handle);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return MEGATRON_CUDNN_FUNCTION(cudnnSetStream)(handle, stream);
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return MEGATRON_CUDNN_FUNCTION(cudnnGetStream)(handle, stream);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendCreateDescriptor)(type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendDestroyDescriptor)(descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendFinalize)(descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendSetAttribute)(descriptor, name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendGetAttribute)(descriptor, name, type, requested, count,
                                                           elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t operands) {
  return MEGATRON_CUDNN_FUNCTION(cudnnBackendExecute)(handle, plan, operands);
}

}  // extern "C"
#endif  // MEGATRON_CUDNN
