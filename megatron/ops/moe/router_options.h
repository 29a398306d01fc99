// The options of the router of a mixture of experts (router.h).
#ifndef MEGATRON_OPS_MOE_ROUTER_OPTIONS_H_
#define MEGATRON_OPS_MOE_ROUTER_OPTIONS_H_

namespace megatron::ops {

enum class RouterScore { kSoftmax, kSigmoid };

struct Router {
  RouterScore score = RouterScore::kSoftmax;
  int topk = 2;
  bool pre_softmax = false;  // only with kSoftmax
  float scaling_factor = 1;  // factor of the probabilities
  // Experts are chosen by logit + bias, however probabilities are computed.
  bool choose_by_logit = false;
  // Experts are chosen from the `group_topk` best of `num_groups` equal groups of consecutive
  // experts. A group's score is the sum of its best group_score_topk scores; 0 means
  // topk / group_topk.
  int num_groups = 1, group_topk = 1, group_score_topk = 0;
};

enum class DropPolicy {
  kProbability,  // keeps the choices of greatest probability; if equal, those of earlier tokens
  kPosition,     // keeps the choices of the first tokens
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_ROUTER_OPTIONS_H_
