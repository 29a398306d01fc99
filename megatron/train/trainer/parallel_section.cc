#include "megatron/train/trainer/parallel_section.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "megatron/base/status_macros.h"
#include "megatron/plan/tensor_cuts.h"

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
  if (mode == "1d") return TensorGridShape();
  MEGATRON_ASSIGN_OR_RETURN(
      const PlanGrid grid,
      GridOfMode(mode, config.tensor_model_parallel_size(), config.tensor_parallel_depth()));
  return TensorGridShape{static_cast<int>(grid.side), static_cast<int>(grid.depth), grid.is_cube};
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
  MEGATRON_ASSIGN_OR_RETURN(sizes.order, RankOrder::Parse(config.rank_order()));
  if (const int64_t ranks = SecondaryShardRanks(config); ranks > 1) {
    const int64_t all = config.data_parallel_size() * config.context_parallel_size();
    sizes.hosts = static_cast<int>(std::max<int64_t>(1, all / ranks));
  }
  return sizes;
}

int64_t CopiesOnAHost(const config::ParallelConfig& config) {
  const int64_t of_host = config.hierarchical_collectives_ranks_per_host();
  if (of_host == 0) return 1;
  config::ParallelConfig levels = config;
  levels.clear_zero_hpz_partition_size();
  const absl::StatusOr<ParallelSizes> sizes = ToParallelSizes(levels);
  if (!sizes.ok()) return 1;
  const int64_t ranks = int64_t{sizes->tensor} * sizes->context * sizes->pipeline * sizes->data;
  if (ranks > std::numeric_limits<int>::max()) return 1;
  const absl::StatusOr<RankGrid> grid = RankGrid::Create(*sizes, static_cast<int>(ranks));
  if (!grid.ok()) return 1;
  const std::vector<int> copies = grid->PeersOf(0, {Axis::kData, Axis::kContext});
  return std::count_if(copies.begin(), copies.end(), [&](int rank) { return rank < of_host; });
}

int64_t SecondaryShardRanks(const config::ParallelConfig& config) {
  const int64_t written = config.zero_hpz_partition_size();
  return written == 0 ? CopiesOnAHost(config) : written;
}

}  // namespace megatron
