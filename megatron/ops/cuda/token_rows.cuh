// Rows of tensors that have tokens, groups and heads, and whose last dim alone is contiguous.
#ifndef MEGATRON_OPS_CUDA_TOKEN_ROWS_CUH_
#define MEGATRON_OPS_CUDA_TOKEN_ROWS_CUH_

#include <cstdint>

#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {

// A tensor [tokens, groups, width] or [tokens, groups, heads of a group, width].
struct TokenRows {
  void* data = nullptr;
  int64_t token_stride = 0, group_stride = 0, head_stride = 0;

  template <typename T>
  __device__ T* Row(int64_t token, int64_t group, int64_t of_group) const {
    return static_cast<T*>(data) + token * token_stride + group * group_stride +
           of_group * head_stride;
  }
};

inline TokenRows RowsOf(const Tensor& x) {
  return {x.raw(), x.stride(0), x.stride(1), x.rank() == 4 ? x.stride(2) : 0};
}
// The same for one number of each head, [tokens, groups, heads of a group].
inline TokenRows NumbersOf(const Tensor& x_TGR) {
  return {x_TGR.raw(), x_TGR.stride(0), x_TGR.stride(1), 1};
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_TOKEN_ROWS_CUH_
