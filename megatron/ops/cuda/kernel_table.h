// The table of CUDA kernels: for each op, the function that does the op's work on the tensors of a
// CUDA device.
//
// An entry is found by the op itself and has the op's own type, so a signature is written in the
// op's header only:
//
//   // ops/norm.cc, after the op has checked its operands
//   if (RunsOnCuda(stream)) return OnCuda<NormForward>(stream, norm, x_TH, tensors, y_TH);
//
//   // ops/cuda/norm.cu
//   void NormForward(const Stream& stream, ...) { ... }
//   MEGATRON_CUDA_KERNEL(NormForward);
//
// Entries are filled in before main: by the kernels (:kernels, in a build with CUDA), or in a test
// by what stands for a device (:emulated, :emulated_kernels). A program that links none of them has
// an empty table, and a call ends it.
//
// Kernels are asynchronous on the stream. Sums have a fixed order: two runs on one kind of device
// give the same bits. Atomics only count blocks and find maxima. A failed launch is a CHECK.
#ifndef MEGATRON_OPS_CUDA_KERNEL_TABLE_H_
#define MEGATRON_OPS_CUDA_KERNEL_TABLE_H_

#include <string>

namespace megatron::ops {

// The entry of `op`; null until a kernel is registered. It is initialized before any code runs, so
// the order of registrations does not matter.
template <auto* op>
inline decltype(op) cuda_kernel = nullptr;

// The name of the op ("NormForward"), from the text of the compiler for a function that has the op
// as its template argument `op`.
std::string CudaOpNameIn(std::string function);
template <auto* op>
std::string CudaOpName() {
  return CudaOpNameIn(__PRETTY_FUNCTION__);
}

// Ends the program with a message about the op.
[[noreturn]] void FailWithoutCudaKernel(const std::string& op_name);
[[noreturn]] void FailWithTwoCudaKernels(const std::string& op_name);

// Calls the kernel of `op`.
template <auto* op, typename... Operands>
void OnCuda(const Operands&... operands) {
  if (cuda_kernel<op> == nullptr) FailWithoutCudaKernel(CudaOpName<op>());
  cuda_kernel<op>(operands...);
}

// Fills in the entry of `op`. The result only serves to initialize a variable.
template <auto* op>
bool RegisterCudaKernel(decltype(op) kernel) {
  if (cuda_kernel<op> != nullptr) FailWithTwoCudaKernels(CudaOpName<op>());
  cuda_kernel<op> = kernel;
  return true;
}

}  // namespace megatron::ops

// Registers the function megatron::ops::cuda::op as the kernel of megatron::ops::op.
#define MEGATRON_CUDA_KERNEL(op)                   \
  [[maybe_unused]] const bool op##_is_registered = \
      ::megatron::ops::RegisterCudaKernel<&::megatron::ops::op>(&::megatron::ops::cuda::op)

#endif  // MEGATRON_OPS_CUDA_KERNEL_TABLE_H_
