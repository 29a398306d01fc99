// The matrix products of multi-head latent attention, where queries, and keys with values, come out
// of narrow vectors.
#ifndef MEGATRON_PLAN_COMPRESSED_ATTENTION_H_
#define MEGATRON_PLAN_COMPRESSED_ATTENTION_H_

#include "megatron/plan/model_costs.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// Returns the products of one of `tp` ranks and `tokens` tokens, of which `sp` ranks share those
// that go into the narrow vectors.
MatrixProducts CompressedAttentionProducts(const PlanModel& model, double tokens, double tp,
                                           double sp);

}  // namespace megatron

#endif  // MEGATRON_PLAN_COMPRESSED_ATTENTION_H_
