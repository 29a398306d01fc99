// How tokens choose their experts: scores from logits, the best of them, and what keeps the choice
// balanced.
//
// Legend: T tokens, E experts, K experts that a token chooses, U units, the tokens over which a
// balance is struck (samples, or the whole micro-batch). Logits, scores and probabilities are fp32,
// experts int32, counts int64; all is contiguous. A token's choice depends on its own logits alone.
// Of equal scores the expert with the smaller number wins.
//
// Softmax: Mixtral's weights are the softmax over the chosen logits, those of pre_softmax (Switch,
// Qwen) the chosen entries of the softmax over all. Sigmoid (DeepSeek-V3): the chosen scores,
// divided by their sum where there are several.
#ifndef MEGATRON_OPS_MOE_ROUTER_H_
#define MEGATRON_OPS_MOE_ROUTER_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

enum class RouterScore { kSoftmax, kSigmoid };

struct Router {
  RouterScore score = RouterScore::kSoftmax;
  int topk = 2;
  bool pre_softmax = false;  // of kSoftmax
  float scaling_factor = 1;  // of the probabilities
  // The choice is by logit + bias, whatever probabilities are made of.
  bool choose_by_logit = false;
  // Experts are chosen from the `group_topk` best of `num_groups` equal groups of consecutive
  // experts; a group is as good as the sum of its best topk / group_topk scores.
  int num_groups = 1, group_topk = 1;
};

// expert (=), by falling score, and probability (=). The choice is by score + bias, unless the bias
// is empty; probabilities are always of the score alone.
void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK);

// Which of the tokens belong together: token t is of unit n / tokens_per_unit, n being first_token
// + t, or where there is number_T (int32) number_T[t]; one whose number is negative is of none.
struct RouterUnits {
  int64_t first_token = 0, tokens_per_unit = 1;
  Tensor number_T;
};

// counts[u, e] += tokens of unit u that chose expert e.
void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE);

// Losses on the logits, besides that of the model:
//   balance: balance_weight * sum over t, e of score[t, e] * counts[unit of t, e]
//   z:       z_weight * sum over t of logsumexp(logits[t])^2
// where score is the softmax over all experts, or the sigmoids divided by their sum. Where units
// differ in size, share[u] is 1 / tokens of unit u: a token's term of the first sum is multiplied
// by its square, of the second by itself, and tokens of no unit have none.
struct RouterLosses {
  Tensor counts_UE;  // empty: no balance loss
  RouterUnits units;
  Tensor share_U;  // fp32, or empty
  float balance_weight = 0, z_weight = 0;
};

// dlogits (=), of the probabilities' gradient and of the losses. values (=): of each token its
// terms of the two sums above, without weights.
void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2);

// sums[0] += balance_factor * sum of values[t, 0]; sums[1] += z_factor * sum of values[t, 1]. Each
// sum is formed in double precision, in a fixed order.
void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2);

enum class DropPolicy {
  kProbability,  // keeps the choices of greatest probability; of equal ones the earlier token's
  kPosition,     // keeps those of the first tokens
};

// Of each unit's choices of an expert keeps `capacity`; the others become -1. The tokens are whole
// units: first_token must be 0, and number_T empty.
void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_ROUTER_H_
