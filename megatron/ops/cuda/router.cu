#include <cstdint>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/moe/router_token.h"

namespace megatron::ops::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    RouteTokens(Router router, int64_t tokens, int64_t experts, const float* logits,
                const float* bias, int32_t* expert, float* probability) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  RouteToken(router, experts, logits + token * experts, bias, expert + token * router.topk,
             probability + token * router.topk);
}

// Each block has one unit and one expert.
__global__ void __launch_bounds__(kThreads)
    CountUnit(TokenUnits units, int64_t topk, int64_t count, int64_t experts, const int32_t* expert,
              int64_t* counts) {
  __shared__ int partial[kWarps];
  const int64_t unit = blockIdx.x / experts, mine = blockIdx.x % experts;
  int64_t begin = 0, end = count;
  if (units.number == nullptr) {  // the unit's choices are contiguous
    const int64_t first = unit * units.tokens_per_unit - units.first_token;
    begin = max(begin, first * topk);
    end = min(end, (first + units.tokens_per_unit) * topk);
  }
  int found = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    found += expert[i] == mine && (units.number == nullptr || units.Of(i / topk) == unit);
  }
  found = BlockSum(found, partial);
  if (threadIdx.x == 0) counts[blockIdx.x] += found;
}

__global__ void __launch_bounds__(kThreads)
    RouteTokensBackward(Router router, int64_t tokens, int64_t experts, TokenLosses losses,
                        const float* logits, const int32_t* expert, const float* dprobability,
                        float* dlogits, float* values) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  RouterTokenGradient gradient = losses.Of(token, experts);
  gradient.expert = expert + token * router.topk;
  gradient.dprobability = dprobability + token * router.topk;
  gradient.values = values + 2 * token;
  RouteTokenBackward(router, experts, logits + token * experts, gradient,
                     dlogits + token * experts);
}

__global__ void __launch_bounds__(kThreads)
    SumValues(const float* values, int64_t tokens, double balance_factor, double z_factor,
              float* sums) {
  __shared__ double partial[kWarps];
  double balance = 0, z = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads) {
    balance += values[2 * t];
    z += values[2 * t + 1];
  }
  balance = BlockSum(balance, partial);
  z = BlockSum(z, partial);
  if (threadIdx.x != 0) return;
  sums[0] += static_cast<float>(balance_factor * balance);
  sums[1] += static_cast<float>(z_factor * z);
}

// Each thread has one choice and counts the choices of the same unit and expert that come before
// it.
__global__ void __launch_bounds__(kThreads)
    FindDrops(bool by_probability, int64_t capacity, int64_t of_unit, int64_t count,
              const int32_t* expert, const float* probability, bool* drop) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t begin = i / of_unit * of_unit, end = min(begin + of_unit, count);
  int64_t before = 0;
  for (int64_t j = begin; j < end && expert[i] >= 0; ++j) {
    if (expert[j] != expert[i]) continue;
    const bool equal = !by_probability || probability[j] == probability[i];
    before += equal ? j < i : probability[j] > probability[i];
  }
  drop[i] = before >= capacity;
}

__global__ void __launch_bounds__(kThreads) Drop(int64_t count, const bool* drop, int32_t* expert) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count && drop[i]) expert[i] = -1;
}

__global__ void __launch_bounds__(kThreads)
    FindBins(int64_t tokens, int64_t experts, const float* logits, const float* bias, int64_t best,
             const int32_t* expert, int64_t bins, int32_t* bin) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  FindMarginBins(experts, logits + token * experts, bias, expert[token * best + best - 1], bins,
                 bin + token * experts);
}

// Each block has one expert. A thread alone counts in its bins.
__global__ void __launch_bounds__(kThreads)
    CountBins(int64_t tokens, int64_t experts, int64_t bins, const int32_t* bin, int64_t* counts) {
  const int64_t mine = blockIdx.x;
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t found = bin[t * experts + mine];
    if (found % kThreads == static_cast<int>(threadIdx.x)) ++counts[mine * bins + found];
  }
}

}  // namespace

void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK) {
  const int64_t tokens = logits_TE.dim(0);
  if (tokens == 0) return;
  RouteTokens<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      router, tokens, logits_TE.dim(1), logits_TE.data<float>(),
      bias_E.empty() ? nullptr : bias_E.data<float>(), expert_TK.data<int32_t>(),
      probability_TK.data<float>());
  CheckLaunched("router");
}

void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE) {
  if (counts_UE.numel() == 0) return;
  CountUnit<<<Blocks(counts_UE.numel(), 1), kThreads, 0, Handle(stream)>>>(
      Bare(units), expert_TK.dim(1), expert_TK.numel(), counts_UE.dim(1), expert_TK.data<int32_t>(),
      counts_UE.data<int64_t>());
  CheckLaunched("choices of experts");
}

void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2) {
  const int64_t tokens = logits_TE.dim(0);
  if (tokens == 0) return;
  RouteTokensBackward<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      router, tokens, logits_TE.dim(1), Bare(losses), logits_TE.data<float>(),
      expert_TK.data<int32_t>(), dprobability_TK.data<float>(), dlogits_TE.data<float>(),
      values_T2.data<float>());
  CheckLaunched("router backward");
}

void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2) {
  SumValues<<<1, kThreads, 0, Handle(stream)>>>(values_T2.data<float>(), values_T2.dim(0),
                                                balance_factor, z_factor, sums_2.data<float>());
  CheckLaunched("router losses");
}

void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK) {
  const int64_t count = expert_TK.numel();
  if (count == 0) return;
  bool* const drop = static_cast<bool*>(stream.cuda()->Workspace(count));
  FindDrops<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
      policy == DropPolicy::kProbability, capacity, units.tokens_per_unit * expert_TK.dim(1), count,
      expert_TK.data<int32_t>(), probability_TK.data<float>(), drop);
  Drop<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(count, drop,
                                                                 expert_TK.data<int32_t>());
  CheckLaunched("drops over capacity");
}

void CountMargins(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E,
                  const Tensor& expert_TJ, const Tensor& counts_EB) {
  const int64_t tokens = logits_TE.dim(0), experts = logits_TE.dim(1), bins = counts_EB.dim(1);
  if (tokens == 0) return;
  int32_t* const bin = static_cast<int32_t*>(
      stream.cuda()->Workspace(tokens * experts * static_cast<int64_t>(sizeof(int32_t))));
  FindBins<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      tokens, experts, logits_TE.data<float>(), bias_E.data<float>(), expert_TJ.dim(1),
      expert_TJ.data<int32_t>(), bins, bin);
  CountBins<<<Blocks(experts, 1), kThreads, 0, Handle(stream)>>>(tokens, experts, bins, bin,
                                                                 counts_EB.data<int64_t>());
  CheckLaunched("margins of experts");
}

MEGATRON_CUDA_KERNEL(RouterForward);
MEGATRON_CUDA_KERNEL(CountMargins);
MEGATRON_CUDA_KERNEL(CountChoices);
MEGATRON_CUDA_KERNEL(RouterBackward);
MEGATRON_CUDA_KERNEL(AddRouterLosses);
MEGATRON_CUDA_KERNEL(DropOverCapacity);

}  // namespace megatron::ops::cuda
