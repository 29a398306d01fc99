#include "megatron/ops/moe/router.h"

#include <algorithm>
#include <vector>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/moe/router_token.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32;

void CheckRouter(const Stream& stream, const Router& router, const Tensor& logits_TE) {
  CHECK_EQ(logits_TE.rank(), 2) << logits_TE;
  CheckContiguous(stream, logits_TE, kF32, logits_TE.shape());
  const int64_t experts = logits_TE.dim(1);
  CHECK(router.topk >= 1 && router.topk <= experts && router.topk <= kMostChoices) << router.topk;
  CHECK(experts <= kMostExperts) << experts;
  CHECK(router.num_groups >= 1 && experts % router.num_groups == 0) << router.num_groups;
  CHECK(router.group_topk >= 1 && router.group_topk <= router.num_groups) << router.group_topk;
  if (router.group_score_topk == 0) CHECK_EQ(router.topk % router.group_topk, 0);
  CHECK(router.group_score_topk >= 0 && router.group_score_topk <= kMostChoices &&
        router.group_score_topk <= experts / router.num_groups)
      << router.group_score_topk;
  CHECK_LE(router.topk, experts / router.num_groups * router.group_topk);
}

void CheckUnits(const Stream& stream, const RouterUnits& units, int64_t tokens,
                const Tensor& counts_UE) {
  CHECK_GE(units.first_token, 0);
  CHECK_GE(units.tokens_per_unit, 1);
  if (!units.number_T.empty()) {
    CheckContiguous(stream, units.number_T, DType::kInt32, {tokens});
  } else if (tokens > 0) {
    CHECK_LT((units.first_token + tokens - 1) / units.tokens_per_unit, counts_UE.dim(0));
  }
}

}  // namespace

void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK) {
  CheckRouter(stream, router, logits_TE);
  const int64_t tokens = logits_TE.dim(0), experts = logits_TE.dim(1);
  if (!bias_E.empty()) CheckContiguous(stream, bias_E, kF32, {experts});
  CheckContiguous(stream, expert_TK, DType::kInt32, {tokens, router.topk});
  CheckContiguous(stream, probability_TK, kF32, {tokens, router.topk});
  if (RunsOnCuda(stream)) {
    return OnCuda<RouterForward>(stream, router, logits_TE, bias_E, expert_TK, probability_TK);
  }
  if (!RunsOnCpu(stream)) return;
  const float* const bias = bias_E.empty() ? nullptr : bias_E.data<float>();
  stream.pool()->ParallelFor(tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      RouteToken(router, experts, logits_TE.data<float>() + t * experts, bias,
                 expert_TK.data<int32_t>() + t * router.topk,
                 probability_TK.data<float>() + t * router.topk);
    }
  });
}

void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE) {
  CHECK_EQ(expert_TK.rank(), 2) << expert_TK;
  CheckContiguous(stream, expert_TK, DType::kInt32, expert_TK.shape());
  CheckContiguous(stream, counts_UE, DType::kInt64, counts_UE.shape());
  CheckUnits(stream, units, expert_TK.dim(0), counts_UE);
  if (RunsOnCuda(stream)) return OnCuda<CountChoices>(stream, expert_TK, units, counts_UE);
  if (!RunsOnCpu(stream)) return;
  const int64_t topk = expert_TK.dim(1), experts = counts_UE.dim(1);
  const int32_t* const expert = expert_TK.data<int32_t>();
  const TokenUnits of = Bare(units);
  for (int64_t i = 0; i < expert_TK.numel(); ++i) {
    const int64_t unit = of.Of(i / topk);
    if (expert[i] < 0 || unit < 0) continue;
    ++counts_UE.data<int64_t>()[unit * experts + expert[i]];
  }
}

void CountMargins(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E,
                  const Tensor& expert_TJ, const Tensor& counts_EB) {
  CHECK_EQ(logits_TE.rank(), 2) << logits_TE;
  const int64_t tokens = logits_TE.dim(0), experts = logits_TE.dim(1);
  CheckContiguous(stream, logits_TE, kF32, logits_TE.shape());
  CheckContiguous(stream, bias_E, kF32, {experts});
  CheckContiguous(stream, expert_TJ, DType::kInt32, {tokens, expert_TJ.dim(1)});
  CheckContiguous(stream, counts_EB, DType::kInt64, {experts, counts_EB.dim(1)});
  if (RunsOnCuda(stream))
    return OnCuda<CountMargins>(stream, logits_TE, bias_E, expert_TJ, counts_EB);
  if (!RunsOnCpu(stream)) return;
  const int64_t best = expert_TJ.dim(1), bins = counts_EB.dim(1);
  const int32_t* const expert = expert_TJ.data<int32_t>();
  int64_t* const counts = counts_EB.data<int64_t>();
  stream.pool()->ParallelFor(tokens, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> bin(experts);
    for (int64_t t = begin; t < end; ++t) {
      FindMarginBins(experts, logits_TE.data<float>() + t * experts, bias_E.data<float>(),
                     expert[t * best + best - 1], bins, bin.data());
      for (int64_t e = 0; e < experts; ++e)
        __atomic_fetch_add(&counts[e * bins + bin[e]], int64_t{1}, __ATOMIC_RELAXED);
    }
  });
}

void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2) {
  CheckRouter(stream, router, logits_TE);
  const int64_t tokens = logits_TE.dim(0), experts = logits_TE.dim(1);
  CheckContiguous(stream, expert_TK, DType::kInt32, {tokens, router.topk});
  CheckContiguous(stream, dprobability_TK, kF32, {tokens, router.topk});
  CheckContiguous(stream, dlogits_TE, kF32, {tokens, experts});
  CheckContiguous(stream, values_T2, kF32, {tokens, 2});
  if (!losses.counts_UE.empty()) {
    CheckContiguous(stream, losses.counts_UE, DType::kInt64, {losses.counts_UE.dim(0), experts});
    CheckUnits(stream, losses.units, tokens, losses.counts_UE);
  }
  if (!losses.share_U.empty())
    CheckContiguous(stream, losses.share_U, kF32, losses.share_U.shape());
  if (RunsOnCuda(stream)) {
    return OnCuda<RouterBackward>(stream, router, logits_TE, expert_TK, dprobability_TK, losses,
                                  dlogits_TE, values_T2);
  }
  if (!RunsOnCpu(stream)) return;
  const TokenLosses terms = Bare(losses);
  stream.pool()->ParallelFor(tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      RouterTokenGradient gradient = terms.Of(t, experts);
      gradient.expert = expert_TK.data<int32_t>() + t * router.topk;
      gradient.dprobability = dprobability_TK.data<float>() + t * router.topk;
      gradient.values = values_T2.data<float>() + 2 * t;
      RouteTokenBackward(router, experts, logits_TE.data<float>() + t * experts, gradient,
                         dlogits_TE.data<float>() + t * experts);
    }
  });
}

void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2) {
  CheckContiguous(stream, values_T2, kF32, {values_T2.dim(0), 2});
  CheckContiguous(stream, sums_2, kF32, {2});
  if (RunsOnCuda(stream)) {
    return OnCuda<AddRouterLosses>(stream, values_T2, balance_factor, z_factor, sums_2);
  }
  if (!RunsOnCpu(stream)) return;
  const float* const values = values_T2.data<float>();
  double balance = 0, z = 0;
  for (int64_t t = 0; t < values_T2.dim(0); ++t) {
    balance += values[2 * t];
    z += values[2 * t + 1];
  }
  sums_2.data<float>()[0] += static_cast<float>(balance_factor * balance);
  sums_2.data<float>()[1] += static_cast<float>(z_factor * z);
}

void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK) {
  CHECK(units.first_token == 0 && units.number_T.empty());
  CheckContiguous(stream, expert_TK, DType::kInt32, expert_TK.shape());
  CheckContiguous(stream, probability_TK, kF32, expert_TK.shape());
  if (RunsOnCuda(stream)) {
    return OnCuda<DropOverCapacity>(stream, policy, capacity, units, probability_TK, expert_TK);
  }
  if (!RunsOnCpu(stream)) return;
  const int64_t topk = expert_TK.dim(1), of_unit = units.tokens_per_unit * topk;
  int32_t* const expert = expert_TK.data<int32_t>();
  const float* const probability = probability_TK.data<float>();
  for (int64_t begin = 0; begin < expert_TK.numel(); begin += of_unit) {
    const int64_t end = std::min(begin + of_unit, expert_TK.numel());
    // The choices of one expert are contiguous, with those to keep first.
    std::vector<int64_t> order;
    for (int64_t i = begin; i < end; ++i) {
      if (expert[i] >= 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      if (expert[a] != expert[b]) return expert[a] < expert[b];
      if (policy == DropPolicy::kProbability && probability[a] != probability[b]) {
        return probability[a] > probability[b];
      }
      return a < b;
    });
    int32_t current = -1;
    int64_t kept = 0;
    for (const int64_t i : order) {
      if (expert[i] != current) kept = 0;
      current = expert[i];
      if (++kept > capacity) expert[i] = -1;
    }
  }
}

}  // namespace megatron::ops
