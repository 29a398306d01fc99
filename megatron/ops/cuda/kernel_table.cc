#include "megatron/ops/cuda/kernel_table.h"

#include "glog/logging.h"

namespace megatron::ops {

std::string CudaOpNameIn(std::string function) {
  constexpr char kArgument[] = "op = ";  // g++: [with auto* op = Scale; ...], clang: [op = &Scale]
  function.erase(0, function.find(kArgument) + sizeof(kArgument) - 1);
  function.erase(function.find_first_of(";]"));
  return function.substr(function.find_last_of("&:") + 1);
}

void FailWithoutCudaKernel(const std::string& op_name) {
  LOG(FATAL) << "no CUDA kernel is linked for " << op_name
             << ": a program has kernels when it is built with --config=cuda";
}

void FailWithTwoCudaKernels(const std::string& op_name) {
  LOG(FATAL) << "two CUDA kernels are linked for " << op_name;
}

}  // namespace megatron::ops
