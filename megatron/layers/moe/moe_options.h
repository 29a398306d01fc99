// Options of the mixture-of-experts layers of a model. Defaults are Megatron's, except where a
// comment says otherwise.
#ifndef MEGATRON_LAYERS_MOE_MOE_OPTIONS_H_
#define MEGATRON_LAYERS_MOE_MOE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/ops/moe/router_options.h"

namespace megatron {

// The tokens over which the balance loss is computed.
enum class BalanceUnit {
  kNone,
  kSample,      // Megatron's seq_aux_loss
  kMicroBatch,  // Megatron's aux_loss: the result depends on the size of micro-batches
  // Megatron's global_aux_loss: the step's micro-batches so far, of all data-parallel ranks. The
  // result depends on how many samples all ranks together take at once.
  kStep,
};

struct BalanceLoss {
  BalanceUnit unit = BalanceUnit::kSample;
  float coeff = 0;
};

struct MoeOptions {
  int64_t num_experts = 0;  // 0 gives all layers a dense MLP
  // The layers that have experts, by number in the whole model; empty means all.
  std::vector<bool> layers;
  int64_t ffn_hidden_size = 0;         // feed-forward size of one expert
  int64_t shared_ffn_hidden_size = 0;  // size of the expert that sees all tokens; 0: there is none
  bool shared_expert_gate = false;     // see shared_expert_gate.h; with a shared expert
  ops::Router router;
  BalanceUnit balance = BalanceUnit::kSample;
  float aux_loss_coeff = 0;
  std::vector<BalanceLoss> further_balances;  // other units' losses besides that of `balance`
  float z_loss_coeff = 0;
  bool expert_bias = false;
  float expert_bias_update_rate = 1e-3f;
  // With expert_bias: biases follow from so many bins of the step's margins (quantile_bias.h), not
  // from the update rate. 0: they don't.
  int64_t quantile_bins = 0;
  // An expert takes up to ceil(factor * topk * tokens / experts) tokens of each sample; unset: all.
  std::optional<double> capacity_factor;
  ops::DropPolicy drop_policy = ops::DropPolicy::kProbability;
  // Experts with a capacity get as many rows as they can take, zeros among them, so that messages
  // have sizes that are known beforehand.
  bool pad_to_capacity = false;
  // In training, experts are chosen so that each sample's tokens choose all of them equally often
  // (ops/moe/sinkhorn.h).
  bool sinkhorn = false;
  // Rows travel to the first half of each rank's experts and to the second half by themselves, each
  // way beside the products of the other half. It changes no bits, and nothing with a shared
  // expert, with deduplicated dispatch, or where ranks do not share experts or have one each.
  bool dispatch_in_parts = false;
  float input_jitter_eps = 0;  // in training the router's input is scaled by 1 +- eps

  // All balance losses.
  std::vector<BalanceLoss> balances() const {
    std::vector<BalanceLoss> all = {{balance, aux_loss_coeff}};
    all.insert(all.end(), further_balances.begin(), further_balances.end());
    return all;
  }
  bool IsMoeLayer(int64_t layer) const {
    return num_experts > 0 && (layers.empty() || layers[layer]);
  }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_MOE_OPTIONS_H_
