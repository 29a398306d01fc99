#include <algorithm>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/layer_costs.h"
#include "megatron/plan/shared_cores.h"

namespace megatron {
namespace {

// Kernels of a router and of its tokens' rows in a pass.
constexpr double kRouterKernels = 4;

}  // namespace

// Returns one rank's share of the experts' product, of which m are the rows of all its experts.
MatrixProduct LayerPredictor::OfRank(MatrixProduct product) const {
  const double cut = double(l_.etp);
  product.m *= product.count * cut / tp_;
  (product.is_mlp_input ? product.n : product.k) /= cut;
  product.weight_matrices /= l_.ep;
  return product;
}

double LayerPredictor::GroupedSeconds(const char* pass, const MatrixProduct& product) const {
  const double rows = product.m;
  // Processors have a product for the rows of each rank that sends some.
  const double senders = gpu_.cores() > 0 ? double(l_.ep * l_.etp) : 1;
  const double experts = product.weight_matrices * senders;
  const double flops = 2 * rows * product.n * product.k;
  if (rates_.product_flops == rates_.flops) {
    const auto measured = MeasuredSeconds({"grouped", pass, rows / experts, product.n, product.k},
                                          flops, rates_.flops);
    if (measured.has_value()) return experts * meeting_ + *measured;
  }
  const double of_expert = rows / experts;
  const double share =
      program_.product_efficiency() * of_expert / (of_expert + program_.grouped_half_rows());
  const double bytes =
      rates_.element_bytes * (experts * product.n * product.k + rows * (product.n + product.k));
  return experts * meeting_ + flops / (rates_.product_flops * share) + bytes / rates_.memory;
}

// Returns the bytes that permutations of rows pass over in a second.
double LayerPredictor::PermutationRate() const {
  if (program_.permutation_efficiency() == 0) return rates_.memory;
  return rates_.memory * program_.permutation_efficiency() / program_.memory_efficiency();
}

// Routers balance: all experts have as many rows. Each row is permuted there and back.
void LayerPredictor::AddExperts(LayerCosts* layer, const MatrixProduct& product) const {
  const double rows = product.m;
  const double permutation = rates_.element_bytes * 2 * rows * model_.hidden() / PermutationRate();
  const double forward = GroupedSeconds("forward", product);
  const double input = GroupedSeconds("input_gradient", product);
  const double weight = GroupedSeconds("weight_gradient", product);
  layer->forward += forward + permutation;
  layer->backward += input + weight + permutation;
  layer->backward_weight += weight;
  layer->expert_products += forward + input + weight;
  layer->expert_weight_products += weight;
  layer->flops += 2 * rows * product.n * product.k;
  layer->expert_parameters += product.weight_matrices * product.n * product.k;
}

// Returns the seconds of the last call of the backward pass that are not waited for. On a processor
// it is beside the products of weights' gradients, unless these are put off; but its bytes take the
// core. More ranks than cores don't wait.
double LayerPredictor::HiddenReturn(const LayerCosts& layer) const {
  const bool puts_off =
      l_.schedule == PlanSchedule::kZeroBubbleH1 || l_.schedule == PlanSchedule::kZeroBubbleV;
  if (gpu_.cores() == 0 || puts_off || HasMoreRanksThanCores(gpu_, l_.gpus())) return 0;
  const ExpertRows rows = ExpertRowsOf(model_, l_);
  const PlanGroup& group = rows.across_hosts.ranks > 1 ? rows.across_hosts : rows.to_experts;
  if (group.ranks == 1) return 0;
  const double waiting =
      CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, group, 0) + LaneSeconds(gpu_);
  return std::min(waiting, layer.expert_weight_products);
}

// All ranks wait for the one with most rows. Rows that go to hosts are permuted there and added up
// behind the way back, in either pass.
void LayerPredictor::AddExpertExchange(LayerCosts* layer) const {
  layer->expert = ExpertExchangeSeconds(gpu_, program_, model_, l_) - HiddenReturn(*layer);
  if (l_.ep > 1 && !HasMoreRanksThanCores(gpu_, l_.gpus()))
    layer->expert += program_.expert_wait() * layer->expert_products;
  const double rows = ExpertRowsOf(model_, l_).of_hosts;
  const double permutation =
      2 * rates_.element_bytes * 2 * rows * model_.hidden() / PermutationRate();
  layer->forward += permutation;
  layer->backward += permutation;
}

// The numbers of tokens that chose each expert are added up for the balance loss, in the backward
// pass. On GPUs, of which nothing measured either, both are left out.
void LayerPredictor::AddRouter(LayerCosts* layer) const {
  if (gpu_.cores() == 0) return;
  const double seconds = tokens_ / tp_ * model_.experts() * program_.routing_score_seconds() /
                             RankSpeed(gpu_, program_, l_.gpus()) / 2 +
                         kRouterKernels * meeting_;
  layer->forward += seconds;
  layer->backward += seconds;
  const auto sum = [&](const PlanGroup& group) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, group,
                             8 * model_.experts() * double(l_.micro_batch));
  };
  layer->tensor_backward += sum({l_.tp, 1});
  layer->context_backward += sum({l_.cp, l_.tp});
}

}  // namespace megatron
