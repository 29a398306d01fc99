#include "megatron/comm/rank_grid.h"

#include <algorithm>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// The order of coordinates in groups and in messages.
constexpr std::array<Axis, kNumAxes> kByCoordinate = {Axis::kTensor, Axis::kContext, Axis::kExpert,
                                                      Axis::kData, Axis::kPipeline};

constexpr int At(Axis axis) { return static_cast<int>(axis); }

absl::Status CheckPositive(const ParallelSizes& sizes, int world_size) {
  const int positive[] = {
      world_size,     sizes.tensor, sizes.tensor_side,         sizes.tensor_depth, sizes.context,
      sizes.pipeline, sizes.expert, sizes.optimizer_instances, sizes.hosts};
  for (int size : positive) {
    if (size < 1) return absl::InvalidArgumentError("parallel sizes must be at least 1");
  }
  if (sizes.data < 0 || sizes.expert_tensor < 0 || sizes.ranks_per_host < 0) {
    return absl::InvalidArgumentError("parallel sizes must not be negative");
  }
  const int64_t side = sizes.tensor_side;
  if (side > 1 && side * side * sizes.tensor_depth != sizes.tensor) {
    return absl::InvalidArgumentError(absl::StrCat(
        sizes.tensor, " tensor-parallel ranks do not form ",
        sizes.tensor_depth == 1 ? "a square" : absl::StrCat(sizes.tensor_depth, " squares"), " of ",
        side, " rows"));
  }
  if (side == 1 && (sizes.tensor_depth > 1 || sizes.tensor_cube)) {
    return absl::InvalidArgumentError("squares of tensor-parallel ranks need several rows");
  }
  if (sizes.tensor_cube && sizes.tensor_depth != side) {
    return absl::InvalidArgumentError(
        absl::StrCat(sizes.tensor_depth, " squares of ", side, " rows do not form a cube"));
  }
  const std::vector<int>& stages = sizes.embedding_stages;
  const bool ascend =
      std::adjacent_find(stages.begin(), stages.end(), std::greater_equal<>()) == stages.end();
  if (!stages.empty() && (!ascend || stages.front() != 0 || stages.back() >= sizes.pipeline)) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages ", absl::StrJoin(stages, ", "), " of ", sizes.pipeline,
                     " cannot share the embedding: they must ascend from 0"));
  }
  return absl::OkStatus();
}

// Returns "tp2 x cp1 x pp4".
std::string Product(const std::array<int, kNumAxes>& sizes) {
  std::string text;
  for (Axis axis : kByCoordinate) {
    const int size = sizes[At(axis)];
    if (size != 1) absl::StrAppend(&text, text.empty() ? "" : " x ", Name(axis), size);
  }
  return text.empty() ? "1" : text;
}

std::string Product(const RankGrid& grid) {
  std::array<int, kNumAxes> sizes;
  for (Axis axis : kByCoordinate) sizes[At(axis)] = grid.size(axis);
  return Product(sizes);
}

// Returns what the other axes leave of the world for data parallelism.
absl::StatusOr<int> DataSize(std::array<int, kNumAxes> sizes, const char* grid, int world_size) {
  sizes[At(Axis::kData)] = 1;
  int64_t others = 1;
  for (int size : sizes) {
    others *= size;
    if (others > world_size) break;  // stops before it can overflow
  }
  if (others > world_size || world_size % others != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the ", grid, " grid ", Product(sizes),
                                                   " does not divide a world of ", world_size,
                                                   world_size == 1 ? " rank" : " ranks"));
  }
  return static_cast<int>(world_size / others);
}

// Checks that the ranks with the same weights divide into the instances and into the hosts.
absl::Status CheckRuns(const std::array<int, kNumAxes>& sizes, const ParallelSizes& asked,
                       const char* weights) {
  const int64_t ranks = int64_t{sizes[At(Axis::kData)]} * sizes[At(Axis::kContext)];
  const auto check = [&](int runs, const char* of) -> absl::Status {
    if (ranks % runs == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        ranks, ranks == 1 ? " rank has" : " ranks have", " the same ", weights, " (",
        Product(sizes), "), and ", runs, of, " do not divide ", ranks == 1 ? "it" : "them"));
  };
  MEGATRON_RETURN_IF_ERROR(
      check(asked.optimizer_instances, " instances of the distributed optimizer"));
  return check(asked.hosts, " hosts");
}

// A stage's experts belong to the stage, so a rank needs the same stage in both grids.
absl::Status CheckSamePipelines(const RankGrid& dense, const RankGrid& expert,
                                const RankOrder& order) {
  const std::vector<int> of_dense = dense.PeersOf(0, {Axis::kPipeline}),
                         of_expert = expert.PeersOf(0, {Axis::kPipeline});
  if (of_dense == of_expert) return absl::OkStatus();
  const auto text = [](const std::vector<int>& ranks) {
    return ranks.size() <= 4 ? absl::StrJoin(ranks, ", ")
                             : absl::StrCat(ranks[0], ", ", ranks[1], ", ..., ", ranks.back());
  };
  return absl::InvalidArgumentError(
      absl::StrCat(order.ToString(), " gives rank 0 two pipelines: ranks ", text(of_dense),
                   " in the dense grid ", Product(dense), ", and ranks ", text(of_expert),
                   " in the expert grid ", Product(expert),
                   "; in an order that ends with pp they are the same"));
}

}  // namespace

absl::StatusOr<RankGrid> RankGrid::Create(const ParallelSizes& sizes, int world_size) {
  MEGATRON_RETURN_IF_ERROR(CheckPositive(sizes, world_size));
  std::array<int, kNumAxes> by_axis;
  by_axis[At(Axis::kTensor)] = sizes.tensor;
  by_axis[At(Axis::kContext)] = sizes.context;
  by_axis[At(Axis::kExpert)] = 1;
  by_axis[At(Axis::kPipeline)] = sizes.pipeline;
  MEGATRON_ASSIGN_OR_RETURN(by_axis[At(Axis::kData)], DataSize(by_axis, "dense", world_size));
  const int data = by_axis[At(Axis::kData)];
  if (sizes.data != 0 && sizes.data != data) {
    return absl::InvalidArgumentError(absl::StrCat("data parallel size ", sizes.data,
                                                   " was asked for, but the other axes leave ",
                                                   data, " of ", world_size, " ranks"));
  }
  MEGATRON_RETURN_IF_ERROR(CheckRuns(by_axis, sizes, "weights"));
  return RankGrid(by_axis, sizes);
}

absl::StatusOr<RankGrid> RankGrid::CreateExpert(const ParallelSizes& sizes, int world_size) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, Create(sizes, world_size));
  const bool as_dense = sizes.expert_tensor == 0 || sizes.expert_tensor == sizes.tensor;
  if (sizes.expert == 1 && as_dense) return dense;
  std::array<int, kNumAxes> by_axis;
  by_axis[At(Axis::kTensor)] = sizes.expert_tensor != 0 ? sizes.expert_tensor : sizes.tensor;
  by_axis[At(Axis::kContext)] = 1;
  by_axis[At(Axis::kExpert)] = sizes.expert;
  by_axis[At(Axis::kPipeline)] = sizes.pipeline;
  MEGATRON_ASSIGN_OR_RETURN(by_axis[At(Axis::kData)], DataSize(by_axis, "expert", world_size));
  MEGATRON_RETURN_IF_ERROR(CheckRuns(by_axis, sizes, "experts"));
  const RankGrid expert(by_axis, sizes);
  MEGATRON_RETURN_IF_ERROR(CheckSamePipelines(dense, expert, sizes.order));
  return expert;
}

RankGrid::RankGrid(const std::array<int, kNumAxes>& sizes, const ParallelSizes& asked)
    : tensor_side_(asked.tensor_side),
      tensor_depth_(asked.tensor_depth),
      tensor_cube_(asked.tensor_cube),
      optimizer_instances_(asked.optimizer_instances),
      hosts_(asked.hosts),
      ranks_per_host_(asked.ranks_per_host),
      deduplicated_dispatch_(asked.deduplicated_dispatch),
      embedding_stages_(asked.embedding_stages),
      algorithm_(asked.algorithm) {
  for (Axis axis : asked.order.axes()) {
    axes_[At(axis)] = {sizes[At(axis)], world_size_};
    world_size_ *= sizes[At(axis)];
  }
  if (!embedding_stages_.empty()) return;
  embedding_stages_ = {0};
  if (asked.pipeline > 1) embedding_stages_.push_back(asked.pipeline - 1);
}

int RankGrid::size(AxisSet axes) const {
  int product = 1;
  for (Axis axis : kByCoordinate) {
    if (axes.contains(axis)) product *= size(axis);
  }
  return product;
}

int RankGrid::Coordinate(int rank, Axis axis) const {
  CHECK(rank >= 0 && rank < world_size_) << rank << " of " << world_size_;
  const Extent& extent = axes_[At(axis)];
  return rank / extent.stride % extent.size;
}

std::vector<int> RankGrid::GroupFrom(int first, AxisSet axes) const {
  std::vector<int> ranks = {first};
  ranks.reserve(size(axes));
  for (Axis axis : kByCoordinate) {
    if (!axes.contains(axis)) continue;
    const Extent& extent = axes_[At(axis)];
    const int count = static_cast<int>(ranks.size());
    for (int i = 1; i < extent.size; ++i) {
      for (int j = 0; j < count; ++j) ranks.push_back(ranks[j] + i * extent.stride);
    }
  }
  return ranks;
}

std::vector<int> RankGrid::PeersOf(int rank, AxisSet axes) const {
  int first = rank;
  for (Axis axis : kByCoordinate) {
    if (axes.contains(axis)) first -= Coordinate(rank, axis) * axes_[At(axis)].stride;
  }
  return GroupFrom(first, axes);
}

int RankGrid::IndexAmongPeers(int rank, AxisSet axes) const {
  int index = 0, stride = 1;
  for (Axis axis : kByCoordinate) {
    if (!axes.contains(axis)) continue;
    index += Coordinate(rank, axis) * stride;
    stride *= size(axis);
  }
  return index;
}

std::vector<std::vector<int>> RankGrid::Partition(AxisSet axes) const {
  std::vector<std::vector<int>> groups;
  groups.reserve(world_size_ / size(axes));
  for (int rank = 0; rank < world_size_; ++rank) {
    if (IndexAmongPeers(rank, axes) == 0) groups.push_back(GroupFrom(rank, axes));
  }
  return groups;
}

std::string RankGrid::Describe(int rank) const {
  std::string text;
  for (Axis axis : kByCoordinate) {
    if (size(axis) == 1) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ", Name(axis), Coordinate(rank, axis));
  }
  return text;
}

}  // namespace megatron
