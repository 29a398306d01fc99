#include "megatron/train/trainer/parallel_section.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

CollectiveAlgorithm AlgorithmOf(config::CollectiveAlgorithm::Type algorithm) {
  switch (algorithm) {
    case config::CollectiveAlgorithm::mesh:
      return CollectiveAlgorithm::kMesh;
    case config::CollectiveAlgorithm::ring:
      return CollectiveAlgorithm::kRing;
    case config::CollectiveAlgorithm::tree:
      return CollectiveAlgorithm::kTree;
  }
  return CollectiveAlgorithm::kMesh;
}

}  // namespace

absl::StatusOr<int> TensorSideOf(const config::ParallelConfig& config) {
  const std::string& mode = config.tensor_parallel_mode();
  if (mode == "1d") return 1;
  if (mode != "2d") return absl::InvalidArgumentError("expects \"1d\" or \"2d\"");
  const int64_t ranks = config.tensor_model_parallel_size();
  int side = 1;
  while (int64_t{side} * side < ranks) ++side;
  if (int64_t{side} * side == ranks) return side;
  return absl::InvalidArgumentError("needs a square number of ranks: 4, 9, 16, ...");
}

absl::StatusOr<ParallelSizes> ToParallelSizes(const config::ParallelConfig& config) {
  ParallelSizes sizes;
  sizes.tensor = static_cast<int>(config.tensor_model_parallel_size());
  sizes.tensor_side = TensorSideOf(config).value_or(1);
  sizes.context = static_cast<int>(config.context_parallel_size());
  sizes.pipeline = static_cast<int>(config.pipeline_model_parallel_size());
  sizes.data = static_cast<int>(config.data_parallel_size());
  sizes.expert = static_cast<int>(config.expert_model_parallel_size());
  sizes.expert_tensor = static_cast<int>(config.expert_tensor_parallel_size());
  sizes.optimizer_instances = static_cast<int>(config.num_distributed_optimizer_instances());
  sizes.ranks_per_host = static_cast<int>(config.hierarchical_collectives_ranks_per_host());
  sizes.deduplicated_dispatch = config.moe_deduplicated_dispatch();
  sizes.algorithm = AlgorithmOf(config.collective_algorithm());
  if (const int64_t ranks = config.zero_hpz_partition_size(); ranks > 1) {
    const int64_t all = config.data_parallel_size() * config.context_parallel_size();
    sizes.hosts = static_cast<int>(std::max<int64_t>(1, all / ranks));
  }
  MEGATRON_ASSIGN_OR_RETURN(sizes.order, RankOrder::Parse(config.rank_order()));
  return sizes;
}

}  // namespace megatron
