// RankGrid: the arithmetic between a rank of the world and its coordinates on the parallel axes.
// It is pure; every rank computes the same answers.
//
//   sizes.tensor = sizes.pipeline = 2;
//   MEGATRON_ASSIGN_OR_RETURN(RankGrid grid, RankGrid::Create(sizes, 8));
//   grid.Coordinate(5, Axis::kPipeline) == 1;
//   grid.PeersOf(5, {Axis::kTensor}) == {4, 5};
//   grid.Partition({Axis::kData}) == {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
//
// Two grids divide the same ranks. The *dense* grid cuts them by tensor, context, data and
// pipeline. The *expert* grid cuts them anew for mixture-of-experts weights: by tensor (of
// experts), expert, data (of experts) and pipeline. An axis that a grid does not have has size 1
// there. Where all ranks have the same experts, cut as the other weights are, the expert grid is
// the dense grid: so the copies of an expert are over data and context.
//
// The axes are numbered in the order of the sizes: Megatron's default, "tp-cp-ep-dp-pp", in which
// the first axis varies fastest, so that neighbouring ranks differ in their tensor coordinate, or
// another. Pipelines are the same ranks in both grids.
//
// A group lists its ranks by their coordinates, the tensor axis first and then context, expert,
// data and pipeline. So a rank's place in its groups is a matter of its coordinates alone, not of
// the order of the axes: sums over a group are formed in the same order, and shards lie with the
// same coordinates. In the default order the ranks of each group ascend.
//
// The ranks of a group over data and context hold the same weights. Such a group is cut into
// *optimizer instances*, runs of neighbours of equal size: the ranks of an instance shard one copy
// of the optimizer's states among them. Both grids have the same number of instances in a group.
// Likewise it is cut into *hosts*, runs of neighbours whose network is faster than that between
// runs, for what is sent within a host first or only.
//
// The d * q * q tensor-parallel ranks of 2D, 2.5D and 3D tensor parallelism form d squares of side
// q (layers/tensor_grid.h): rank t among them is on level t % d, in row t / d % q and column
// t / (d * q), so the ranks of a column are neighbours. 2D has one level; 3D has as many as rows,
// and is a cube. The side is 1 where each layer is cut along one dim.
//
// With g = ranks_per_host > 0, ranks [0, g), [g, 2 g), ... of the world are those of one host each,
// for hierarchical collectives (hierarchical/hierarchical_communicator.h). 0: there are none. Rows
// of tokens then may go to each host of their experts once (deduplicated dispatch).
//
// Some pipeline stages hold the word embedding, which they share: the first and the last, or others
// that are named.
//
// The algorithm is that of all groups' collectives (comm/collective.h).
#ifndef MEGATRON_COMM_RANK_GRID_H_
#define MEGATRON_COMM_RANK_GRID_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/rank_order.h"
#include "megatron/tensor/axis.h"

namespace megatron {

// The sizes that a user asks for. `data` 0 means what the other axes leave of the world; the data
// size of an expert grid of its own always is that. `expert_tensor` 0 means the tensor size of the
// dense grid.
struct ParallelSizes {
  int tensor = 1;
  int tensor_side = 1;       // q where tensor = d * q * q ranks form d squares; 1: they do not
  int tensor_depth = 1;      // d
  bool tensor_cube = false;  // whether the squares form a cube, which d = q must
  int context = 1;
  int data = 0;
  int pipeline = 1;
  int expert = 1;
  int expert_tensor = 0;
  int optimizer_instances = 1;
  int hosts = 1;
  int ranks_per_host = 0;
  bool deduplicated_dispatch = false;
  std::vector<int> embedding_stages;  // ascending, from the first on; empty: the first and the last
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kMesh;
  RankOrder order;
};

class RankGrid {
 public:
  // The grid of one rank.
  RankGrid() = default;

  // Create the dense and the expert grid. They fail if the sizes do not multiply to the world, if
  // the ranks with the same weights do not divide into the instances and hosts, or if a stage of
  // the embedding is none; the message names the sizes. CreateExpert also fails if the order of the
  // axes gives the two grids different pipelines; the message names two that differ.
  static absl::StatusOr<RankGrid> Create(const ParallelSizes& sizes, int world_size);
  static absl::StatusOr<RankGrid> CreateExpert(const ParallelSizes& sizes, int world_size);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return axes_[static_cast<int>(axis)].size; }
  // Returns the number of ranks in a group over `axes`: the product of their sizes.
  int size(AxisSet axes) const;
  int tensor_side() const { return tensor_side_; }
  int tensor_depth() const { return tensor_depth_; }
  bool tensor_cube() const { return tensor_cube_; }
  int optimizer_instances() const { return optimizer_instances_; }
  int hosts() const { return hosts_; }
  int ranks_per_host() const { return ranks_per_host_; }
  bool deduplicated_dispatch() const { return deduplicated_dispatch_; }
  // Returns the pipeline stages that share the word embedding, ascending.
  const std::vector<int>& embedding_stages() const { return embedding_stages_; }
  CollectiveAlgorithm algorithm() const { return algorithm_; }

  int Coordinate(int rank, Axis axis) const;
  // Returns the ranks that differ from `rank` on `axes` only, by coordinates, with `rank` among
  // them. The first is the smallest.
  std::vector<int> PeersOf(int rank, AxisSet axes) const;
  // Returns the index of `rank` in PeersOf(rank, axes).
  int IndexAmongPeers(int rank, AxisSet axes) const;
  // Returns all groups over `axes`, each in the order of PeersOf, by ascending first rank. Every
  // rank gets the same list, so that creating groups in this order cannot deadlock.
  std::vector<std::vector<int>> Partition(AxisSet axes) const;

  // Returns the coordinates on the axes that have more than one rank, for messages: "tp1 dp0 pp1".
  std::string Describe(int rank) const;

 private:
  struct Extent {
    int size = 1;
    int stride = 1;
  };
  RankGrid(const std::array<int, kNumAxes>& sizes, const ParallelSizes& asked);
  // Returns the group over `axes` whose smallest rank is `first`.
  std::vector<int> GroupFrom(int first, AxisSet axes) const;

  std::array<Extent, kNumAxes> axes_;  // indexed by Axis
  int world_size_ = 1;
  int tensor_side_ = 1, tensor_depth_ = 1;
  bool tensor_cube_ = false;
  int optimizer_instances_ = 1;
  int hosts_ = 1;
  int ranks_per_host_ = 0;
  bool deduplicated_dispatch_ = false;
  std::vector<int> embedding_stages_ = {0};
  CollectiveAlgorithm algorithm_ = CollectiveAlgorithm::kMesh;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_RANK_GRID_H_
