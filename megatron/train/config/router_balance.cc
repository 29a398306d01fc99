#include "megatron/train/config/router_balance.h"

#include <algorithm>

namespace megatron {

std::vector<RouterBalance> RouterBalances(const config::ModelConfig& model) {
  std::vector<RouterBalance> balances;
  for (int i = 0; i < model.moe_router_load_balancing_type_size(); ++i)
    balances.push_back({model.moe_router_load_balancing_type(i)});
  if (balances.empty()) balances.push_back({config::RouterLoadBalancing::seq_aux_loss});
  const size_t coeffs = static_cast<size_t>(model.moe_aux_loss_coeff_size());
  for (size_t i = 0; i < std::min(balances.size(), coeffs); ++i)
    balances[i].coeff = model.moe_aux_loss_coeff(static_cast<int>(i));
  return balances;
}

bool HasRouterBalance(const config::ModelConfig& model, config::RouterLoadBalancing::Type type) {
  for (const RouterBalance& balance : RouterBalances(model)) {
    if (balance.type == type) return true;
  }
  return false;
}

}  // namespace megatron
