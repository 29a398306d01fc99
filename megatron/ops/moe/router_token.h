// The computation of the router for one token: the same code for the CPU and for a CUDA thread.
#ifndef MEGATRON_OPS_MOE_ROUTER_TOKEN_H_
#define MEGATRON_OPS_MOE_ROUTER_TOKEN_H_

#include <cmath>
#include <cstdint>

#include "megatron/ops/moe/router.h"

#ifdef __CUDACC__
#define MEGATRON_HOST_DEVICE __host__ __device__
#else
#define MEGATRON_HOST_DEVICE
#endif

namespace megatron::ops {

constexpr int64_t kMostExperts = 1024;
constexpr int kMostChoices = 32;

// Returns the log of the sum of exponentials.
MEGATRON_HOST_DEVICE inline float LogSumExp(const float* x, int64_t count) {
  float max = x[0];
  for (int64_t i = 1; i < count; ++i) max = x[i] > max ? x[i] : max;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += expf(x[i] - max);
  return max + logf(sum);
}

MEGATRON_HOST_DEVICE inline float Sigmoid(float x) { return 1 / (1 + expf(-x)); }

// The score by which experts are chosen. `lse` is the log-sum-exp of the logits, read only if the
// score needs it.
MEGATRON_HOST_DEVICE inline float ScoreForChoice(const Router& router, float logit, float lse,
                                                 float bias) {
  if (router.choose_by_logit) return logit + bias;
  if (router.score == RouterScore::kSigmoid) return Sigmoid(logit) + bias;
  return (router.pre_softmax ? expf(logit - lse) : logit) + bias;
}

// The best candidate so far. If scores are equal, the one with the smaller index, which is offered
// first, wins.
struct BestOf {
  float score = -INFINITY;
  int32_t index = -1;
  MEGATRON_HOST_DEVICE void Offer(float candidate, int64_t candidate_index) {
    if (index >= 0 && !(candidate > score)) return;
    score = candidate;
    index = static_cast<int32_t>(candidate_index);
  }
};

MEGATRON_HOST_DEVICE inline bool IsAmong(const int32_t* list, int count, int64_t value) {
  for (int i = 0; i < count; ++i) {
    if (list[i] == value) return true;
  }
  return false;
}

// Writes the groups from which experts are chosen to group[group_topk].
template <typename Score>
MEGATRON_HOST_DEVICE void ChooseGroups(const Router& router, int64_t experts, const Score& score,
                                       int32_t* group) {
  const int64_t size = experts / router.num_groups;
  const int best_of_group =
      router.group_score_topk > 0 ? router.group_score_topk : router.topk / router.group_topk;
  for (int i = 0; i < router.group_topk; ++i) {
    BestOf best;
    for (int64_t g = 0; g < router.num_groups; ++g) {
      if (IsAmong(group, i, g)) continue;
      float sum = 0;
      int32_t taken[kMostChoices];
      for (int k = 0; k < best_of_group; ++k) {
        BestOf next;
        for (int64_t e = g * size; e < (g + 1) * size; ++e) {
          if (!IsAmong(taken, k, e)) next.Offer(score(e), e);
        }
        taken[k] = next.index;
        sum += next.score;
      }
      best.Offer(sum, g);
    }
    group[i] = best.index;
  }
}

// Biases lie less than 1 apart from where scores between 0 and 1 need them.
MEGATRON_HOST_DEVICE inline float LowestMargin(const float* bias, int64_t experts) {
  float lowest = bias[0];
  for (int64_t e = 1; e < experts; ++e) lowest = bias[e] < lowest ? bias[e] : lowest;
  return lowest - 1;
}

MEGATRON_HOST_DEVICE inline float HighestMargin(const float* bias, int64_t experts) {
  float highest = bias[0];
  for (int64_t e = 1; e < experts; ++e) highest = bias[e] > highest ? bias[e] : highest;
  return highest + 1;
}

// Writes the bin of the token's margin for each expert. `last` is the best expert that the token
// doesn't choose.
MEGATRON_HOST_DEVICE inline void FindMarginBins(int64_t experts, const float* logits,
                                                const float* bias, int64_t last, int64_t bins,
                                                int32_t* bin) {
  const float lowest = LowestMargin(bias, experts), highest = HighestMargin(bias, experts);
  const float cutoff = Sigmoid(logits[last]) + bias[last];
  const float per_margin = static_cast<float>(bins) / (highest - lowest);
  for (int64_t e = 0; e < experts; ++e) {
    const float at = (cutoff - Sigmoid(logits[e]) - lowest) * per_margin;
    const int64_t found = at > 0 ? static_cast<int64_t>(at) : 0;
    bin[e] = static_cast<int32_t>(found < bins ? found : bins - 1);
  }
}

MEGATRON_HOST_DEVICE inline void RouteToken(const Router& router, int64_t experts,
                                            const float* logits, const float* bias, int32_t* expert,
                                            float* probability) {
  const float lse = LogSumExp(logits, experts);
  const auto score = [&](int64_t e) {
    return ScoreForChoice(router, logits[e], lse, bias == nullptr ? 0 : bias[e]);
  };
  const int64_t group_size = experts / router.num_groups;
  int32_t groups[kMostChoices];
  const bool grouped = router.group_topk < router.num_groups;
  if (grouped) ChooseGroups(router, experts, score, groups);
  for (int k = 0; k < router.topk; ++k) {
    BestOf best;
    for (int64_t e = 0; e < experts; ++e) {
      if (grouped && !IsAmong(groups, router.group_topk, e / group_size)) continue;
      if (!IsAmong(expert, k, e)) best.Offer(score(e), e);
    }
    expert[k] = best.index;
  }
  float chosen[kMostChoices];
  for (int k = 0; k < router.topk; ++k) chosen[k] = logits[expert[k]];
  if (router.score == RouterScore::kSigmoid) {
    float sum = 1e-20f;
    for (int k = 0; k < router.topk; ++k) sum += Sigmoid(chosen[k]);
    if (router.topk == 1) sum = 1;
    for (int k = 0; k < router.topk; ++k)
      probability[k] = router.scaling_factor * Sigmoid(chosen[k]) / sum;
    return;
  }
  const float over = router.pre_softmax ? lse : LogSumExp(chosen, router.topk);
  for (int k = 0; k < router.topk; ++k)
    probability[k] = router.scaling_factor * expf(chosen[k] - over);
}

// RouterUnits with plain pointers.
struct TokenUnits {
  int64_t first_token = 0, tokens_per_unit = 1;
  const int32_t* number = nullptr;

  // The unit of the token; -1 if it has none.
  MEGATRON_HOST_DEVICE int64_t Of(int64_t token) const {
    const int64_t n = number == nullptr ? first_token + token : number[token];
    return n < 0 ? -1 : n / tokens_per_unit;
  }
};

inline TokenUnits Bare(const RouterUnits& units) {
  return {units.first_token, units.tokens_per_unit,
          units.number_T.empty() ? nullptr : units.number_T.data<int32_t>()};
}

struct RouterTokenGradient {
  const int64_t* counts = nullptr;  // [E], or null
  float balance_weight = 0, z_weight = 0;
  float balance_scale = 1, z_scale = 1;  // factors of this token's terms
  const int32_t* expert = nullptr;
  const float* dprobability = nullptr;
  float* values = nullptr;  // [2]
};

// RouterLosses with plain pointers.
struct TokenLosses {
  const int64_t* counts = nullptr;
  TokenUnits units;
  const float* share = nullptr;
  float balance_weight = 0, z_weight = 0;

  // The losses of one token.
  MEGATRON_HOST_DEVICE RouterTokenGradient Of(int64_t token, int64_t experts) const {
    RouterTokenGradient gradient;
    gradient.balance_weight = balance_weight;
    gradient.z_weight = z_weight;
    const int64_t unit = units.Of(token);
    if (share != nullptr) {
      gradient.z_scale = unit < 0 ? 0 : share[unit];
      gradient.balance_scale = gradient.z_scale * gradient.z_scale;
    }
    if (counts != nullptr && unit >= 0) gradient.counts = counts + unit * experts;
    return gradient;
  }
};

inline TokenLosses Bare(const RouterLosses& losses) {
  return {losses.counts_UE.empty() ? nullptr : losses.counts_UE.data<int64_t>(), Bare(losses.units),
          losses.share_U.empty() ? nullptr : losses.share_U.data<float>(), losses.balance_weight,
          losses.z_weight};
}

// Adds the gradient through the probabilities to dlogits.
MEGATRON_HOST_DEVICE inline void AddProbabilityGradient(const Router& router, int64_t experts,
                                                        const float* logits, float lse,
                                                        const RouterTokenGradient& gradient,
                                                        float* dlogits) {
  const int topk = router.topk;
  const float* const g = gradient.dprobability;
  float score[kMostChoices], dot = 0, sum = 0;
  for (int k = 0; k < topk; ++k) score[k] = logits[gradient.expert[k]];
  const bool sigmoid = router.score == RouterScore::kSigmoid;
  const float over = router.pre_softmax || sigmoid ? lse : LogSumExp(score, topk);
  for (int k = 0; k < topk; ++k) {
    score[k] = sigmoid ? Sigmoid(score[k]) : expf(score[k] - over);
    dot += score[k] * g[k];
    sum += score[k];
  }
  if (!sigmoid) {
    for (int k = 0; k < topk; ++k)
      dlogits[gradient.expert[k]] += router.scaling_factor * score[k] * g[k];
    // The common term of the softmax: over all experts, or over the chosen ones.
    if (router.pre_softmax) {
      for (int64_t e = 0; e < experts; ++e)
        dlogits[e] -= router.scaling_factor * dot * expf(logits[e] - lse);
    } else {
      for (int k = 0; k < topk; ++k)
        dlogits[gradient.expert[k]] -= router.scaling_factor * dot * score[k];
    }
    return;
  }
  for (int k = 0; k < topk; ++k) {
    const float slope = score[k] * (1 - score[k]) * router.scaling_factor;
    dlogits[gradient.expert[k]] +=
        topk == 1 ? slope * g[k] : slope * (g[k] - dot / (sum + 1e-20f)) / (sum + 1e-20f);
  }
}

// Adds the gradient of the balance loss to dlogits and returns the value of the loss.
MEGATRON_HOST_DEVICE inline float AddBalanceGradient(const Router& router, int64_t experts,
                                                     const float* logits, float lse,
                                                     const RouterTokenGradient& gradient,
                                                     float* dlogits) {
  const bool sigmoid = router.score == RouterScore::kSigmoid;
  const auto score = [&](int64_t e) {
    return sigmoid ? Sigmoid(logits[e]) : expf(logits[e] - lse);
  };
  float sum = 0, dot = 0;
  for (int64_t e = 0; e < experts; ++e) {
    sum += score(e);
    dot += score(e) * static_cast<float>(gradient.counts[e]);
  }
  if (!sigmoid) sum = 1;
  const float value = dot / sum;
  for (int64_t e = 0; e < experts; ++e) {
    const float s = score(e), slope = sigmoid ? s * (1 - s) / sum : s;
    dlogits[e] += gradient.balance_weight * gradient.balance_scale * slope *
                  (static_cast<float>(gradient.counts[e]) - value);
  }
  return gradient.balance_scale * value;
}

MEGATRON_HOST_DEVICE inline void RouteTokenBackward(const Router& router, int64_t experts,
                                                    const float* logits,
                                                    const RouterTokenGradient& gradient,
                                                    float* dlogits) {
  const float lse = LogSumExp(logits, experts), z_weight = gradient.z_weight * gradient.z_scale;
  for (int64_t e = 0; e < experts; ++e)
    dlogits[e] = z_weight == 0 ? 0 : z_weight * 2 * lse * expf(logits[e] - lse);
  AddProbabilityGradient(router, experts, logits, lse, gradient, dlogits);
  gradient.values[0] = gradient.counts == nullptr
                           ? 0
                           : AddBalanceGradient(router, experts, logits, lse, gradient, dlogits);
  gradient.values[1] = gradient.z_scale * lse * lse;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_ROUTER_TOKEN_H_
