// Tensor maps of the operands of attention, which CopyBox reads.
#ifndef MEGATRON_OPS_CUDA_HOPPER_TENSOR_MAP_CUH_
#define MEGATRON_OPS_CUDA_HOPPER_TENSOR_MAP_CUH_

#include <cstdint>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/hopper/instructions.cuh"

namespace megatron::ops::cuda::hopper {

struct BoxedOperand {
  DType dtype = DType::kBFloat16;
  const Operand* x = nullptr;
  int64_t head_dim = 0, heads = 0, groups = 0, tokens = 0;
  int rows = 0;  // tokens of a box, which is 64 columns wide
};

constexpr int kBoxColumns = 64;

#ifdef MEGATRON_EMULATED_CUDA

inline TensorMap MakeTensorMap(const BoxedOperand& of) {
  constexpr int64_t kBytes = 2;
  const Operand& x = *of.x;
  return {static_cast<const char*>(x.data),
          {of.head_dim, of.heads, of.groups, of.tokens},
          {kBytes, x.head_stride * kBytes, x.group_stride * kBytes, x.token_stride * kBytes},
          {kBoxColumns, 1, 1, of.rows}};
}

#else

// The driver's function, which is looked up at run time: the program is not linked against the
// driver.
inline decltype(&cuTensorMapEncodeTiled) TensorMapEncoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    CHECK(error == cudaSuccess && found == cudaDriverEntryPointSuccess)
        << "the driver has no cuTensorMapEncodeTiled: " << cudaGetErrorString(error);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

inline TensorMap MakeTensorMap(const BoxedOperand& of) {
  constexpr cuuint64_t kBytes = 2;
  const Operand& x = *of.x;
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(of.head_dim),
                             static_cast<cuuint64_t>(of.heads), static_cast<cuuint64_t>(of.groups),
                             static_cast<cuuint64_t>(of.tokens)};
  // The stride of a dim of size one has no meaning, but must be valid.
  const auto bytes = [&](int64_t stride, int64_t size) {
    return (size == 1 ? dims[0] : static_cast<cuuint64_t>(stride)) * kBytes;
  };
  const cuuint64_t strides[] = {bytes(x.head_stride, of.heads), bytes(x.group_stride, of.groups),
                                bytes(x.token_stride, of.tokens)};
  const cuuint32_t box[] = {kBoxColumns, 1, 1, static_cast<cuuint32_t>(of.rows)};
  const cuuint32_t every[] = {1, 1, 1, 1};
  alignas(64) TensorMap map;
  const CUresult result =
      TensorMapEncoder()(&map,
                         of.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                         4, x.data, dims, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK_EQ(result, CUDA_SUCCESS) << "cuTensorMapEncodeTiled";
  return map;
}

#endif

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_TENSOR_MAP_CUH_
