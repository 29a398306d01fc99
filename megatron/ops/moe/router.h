// The router of a mixture of experts: tokens choose experts by scores of the logits, and losses or
// limits keep the choices balanced.
//
// Legend: T tokens, E experts, K choices per token, U units, which are the sets of tokens that are
// balanced (samples, or the whole micro-batch). Logits, scores and probabilities are fp32, experts
// int32, counts int64; all tensors are contiguous. A token's choice depends on its own logits only.
// If scores are equal, the expert with the smaller number wins.
//
// Softmax: the probabilities are the softmax over the chosen logits (Mixtral) or, with pre_softmax,
// the chosen entries of the softmax over all logits (Switch, Qwen). Sigmoid (DeepSeek-V3): they are
// the chosen scores, divided by their sum if there are several.
#ifndef MEGATRON_OPS_MOE_ROUTER_H_
#define MEGATRON_OPS_MOE_ROUTER_H_

#include <cstdint>

#include "megatron/ops/moe/router_options.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Writes expert (=), in descending order of score, and probability (=). Experts are chosen by score
// + bias, unless the bias is empty; probabilities never include the bias.
void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK);

// The unit of each token. Token t has number n: number_T[t] (int32) if number_T is given, else
// first_token + t. It belongs to unit n / tokens_per_unit, or to no unit if n is negative.
struct RouterUnits {
  int64_t first_token = 0, tokens_per_unit = 1;
  Tensor number_T;
};

// counts[u, e] += number of tokens of unit u that chose expert e.
void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE);

// Counts how far each token is from choosing each expert, for the biases that would balance them
// (layers/moe/quantile_bias.h). Scores are sigmoids. expert_TJ has each token's best J experts by
// score + bias in descending order, without groups, of which the token chooses all but the last.
// The margin of expert e is the last one's score + bias, less e's score: a token that has chosen e
// keeps it while e's bias is above. counts[e, b] += number of tokens whose margin is in bin b of B
// equal ones between min(bias) - 1 and max(bias) + 1; the first and the last have those beyond,
// too.
void CountMargins(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E,
                  const Tensor& expert_TJ, const Tensor& counts_EB);

// Losses on the logits, which are added to the model's loss:
//   balance: balance_weight * sum over t, e of score[t, e] * counts[unit of t, e]
//   z:       z_weight * sum over t of logsumexp(logits[t])^2
// score is the softmax over all experts, or the sigmoids divided by their sum. If units differ in
// size, share[u] is 1 / tokens of unit u; a token's term is multiplied by share^2 in the first sum
// and by share in the second, and tokens of no unit have no terms.
struct RouterLosses {
  Tensor counts_UE;  // empty: no balance loss
  RouterUnits units;
  Tensor share_U;  // fp32, or empty
  float balance_weight = 0, z_weight = 0;
};

// Writes dlogits (=), the gradient through the probabilities plus that of the losses, and values
// (=), each token's terms of the two sums above, without weights.
void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2);

// sums[0] += balance_factor * sum of values[t, 0]; sums[1] += z_factor * sum of values[t, 1]. Each
// sum is formed in double precision, in a fixed order.
void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2);

// Keeps `capacity` choices of each expert in each unit; the other choices become -1. The tokens
// must be whole units: first_token is 0 and number_T is empty.
void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_ROUTER_H_
