#include <cmath>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/moe/router_token.h"
#include "megatron/ops/moe/sinkhorn.h"

namespace megatron::ops::cuda {
namespace {

// There is one block: each warp takes a row, then a column, with its lanes along it.
__global__ void __launch_bounds__(kThreads)
    FindBias(const float* logits, int64_t tokens, int64_t experts, double* row_factor, float* most,
             float* bias) {
  __shared__ double factor[kMostExperts];
  __shared__ double partial[kWarps];
  const int64_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int64_t t = warp; t < tokens; t += kWarps) {
    float max = -INFINITY;
    for (int64_t e = lane; e < experts; e += kWarp) max = fmaxf(max, logits[t * experts + e]);
    max = WarpMax(max);
    if (lane == 0) most[t] = max;
  }
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) factor[e] = 1;
  __syncthreads();
  const auto value = [&](int64_t t, int64_t e) {
    return exp(static_cast<double>(logits[t * experts + e]) - static_cast<double>(most[t]));
  };
  for (int round = 0; round < kMostSinkhornRounds; ++round) {
    for (int64_t t = warp; t < tokens; t += kWarps) {
      double sum = 0;
      for (int64_t e = lane; e < experts; e += kWarp) sum += factor[e] * value(t, e);
      sum = WarpSum(sum);
      if (lane == 0) row_factor[t] = 1 / (static_cast<double>(tokens) * (sum + kSinkhornEpsilon));
    }
    __syncthreads();
    double change = 0;
    for (int64_t e = warp; e < experts; e += kWarps) {
      double sum = 0;
      for (int64_t t = lane; t < tokens; t += kWarp) sum += row_factor[t] * value(t, e);
      sum = WarpSum(sum);
      const double next = 1 / (static_cast<double>(experts) * (sum + kSinkhornEpsilon));
      if (lane != 0) continue;
      change += fabs(next - factor[e]);
      factor[e] = next;
    }
    change = BlockSum(change, partial);
    if (change <= kSinkhornTolerance * static_cast<double>(experts)) break;
  }
  for (int64_t e = threadIdx.x; e < experts; e += kThreads)
    bias[e] = static_cast<float>(log(factor[e]));
}

}  // namespace

void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E) {
  const int64_t tokens = logits_TE.dim(0), experts = logits_TE.dim(1);
  CHECK_LE(experts, kMostExperts);
  auto* const row_factor =
      static_cast<double*>(stream.cuda()->Workspace(tokens * (sizeof(double) + sizeof(float))));
  FindBias<<<1, kThreads, 0, Handle(stream)>>>(logits_TE.data<float>(), tokens, experts, row_factor,
                                               reinterpret_cast<float*>(row_factor + tokens),
                                               bias_E.data<float>());
  CheckLaunched("sinkhorn");
}

MEGATRON_CUDA_KERNEL(SinkhornBias);

}  // namespace megatron::ops::cuda
