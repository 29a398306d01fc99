// Delta, the sum of a row of attention's output times its gradient, in the layout of the sums of
// tensor cores: the four lanes of a quad have one row.
#ifndef MEGATRON_OPS_CUDA_ATTENTION_DELTA_CUH_
#define MEGATRON_OPS_CUDA_ATTENTION_DELTA_CUH_

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda {

// Returns the delta of the quad's query, and stores it for the kernel of keys; 0 if there is no
// such query. All lanes of the warp must call it. Rows of the output and of its gradient are
// 16-byte aligned.
template <typename T, int kHead>
__device__ float ComputeDelta(const AttentionArgs& args, int64_t query, int64_t group, int64_t head,
                              bool is_there) {
  constexpr int kElements = 8, kQuad = 4;
  const int lane = threadIdx.x % kQuad;
  float sum = 0;
  if (is_there) {
    const T* const out = args.out.Row<const T>(query, group, head);
    const T* const dout = args.dout.Row<const T>(query, group, head);
#pragma unroll
    for (int i = 0; i < kHead / kElements / kQuad; ++i) {
      const auto outs = Load<T, kElements>(out, i * kQuad + lane);
      const auto douts = Load<T, kElements>(dout, i * kQuad + lane);
#pragma unroll
      for (int j = 0; j < kElements; ++j)
        sum = fmaf(ToFloat(outs.values[j]), ToFloat(douts.values[j]), sum);
    }
  }
  sum = QuadSum(sum);
  if (is_there && lane == 0) args.Delta(query, group, head) = sum;
  return sum;
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_ATTENTION_DELTA_CUH_
