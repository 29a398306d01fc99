#include "megatron/train/trainer/parallel_section.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/algorithm/container.h"
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

const std::vector<std::string>& TensorParallelModes() {
  static const auto* const modes = new std::vector<std::string>{"1d", "2d", "2.5d", "3d"};
  return *modes;
}

absl::StatusOr<TensorGridShape> TensorGridShapeOf(const config::ParallelConfig& config) {
  const std::string& mode = config.tensor_parallel_mode();
  TensorGridShape shape;
  if (mode == "1d") return shape;
  if (!absl::c_linear_search(TensorParallelModes(), mode))
    return absl::InvalidArgumentError("is no mode of tensor parallelism");
  const int64_t ranks = config.tensor_model_parallel_size();
  shape.is_cube = mode == "3d";
  if (mode == "2.5d") shape.depth = static_cast<int>(config.tensor_parallel_depth());
  for (shape.side = 2; shape.side * shape.side <= ranks; ++shape.side) {
    if (shape.is_cube) shape.depth = shape.side;
    if (int64_t{shape.side} * shape.side * shape.depth == ranks) return shape;
  }
  return absl::InvalidArgumentError(
      mode == "2d"     ? "needs a square number of ranks: 4, 9, 16, ..."
      : mode == "2.5d" ? "needs a square number of ranks, 4, 9, 16, ..., times the depth"
                       : "needs a cubic number of ranks: 8, 27, 64, ...");
}

absl::StatusOr<ParallelSizes> ToParallelSizes(const config::ParallelConfig& config) {
  ParallelSizes sizes;
  sizes.tensor = static_cast<int>(config.tensor_model_parallel_size());
  const TensorGridShape grid = TensorGridShapeOf(config).value_or(TensorGridShape());
  sizes.tensor_side = grid.side;
  sizes.tensor_depth = grid.depth;
  sizes.tensor_cube = grid.is_cube;
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
