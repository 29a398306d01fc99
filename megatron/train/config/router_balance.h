// What model.moe_router_load_balancing_type and model.moe_aux_loss_coeff say together.

#ifndef MEGATRON_TRAIN_CONFIG_ROUTER_BALANCE_H_
#define MEGATRON_TRAIN_CONFIG_ROUTER_BALANCE_H_

#include <vector>

#include "megatron/train/config/config.pb.h"

namespace megatron {

struct RouterBalance {
  config::RouterLoadBalancing::Type type;
  double coeff = 0;
};

// Returns the listed types, or the default, seq_aux_loss, each with its coefficient; 0 for those
// that have none.
std::vector<RouterBalance> RouterBalances(const config::ModelConfig& model);

// Returns whether the type is among them.
bool HasRouterBalance(const config::ModelConfig& model, config::RouterLoadBalancing::Type type);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_ROUTER_BALANCE_H_
