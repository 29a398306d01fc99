// Who stands where: the arithmetic between a rank of the world and its coordinates on the parallel
// axes. Pure and without state; every rank computes the same answers.
//
// Two grids lie over the same ranks. The *dense* grid cuts them by tensor, context, data and
// pipeline; the *expert* grid cuts them anew for mixture-of-experts weights, by tensor (of
// experts), expert, data (of experts) and pipeline. An axis that a grid does not have has size 1
// there.
//
// The first axis of an order varies fastest: in "tp-cp-ep-dp-pp", Megatron's default, neighbouring
// ranks differ in their tensor coordinate. Both grids use one order, and pipeline stages hold the
// same ranks in both.
//
//   sizes.tensor = sizes.pipeline = 2;
//   MEGATRON_ASSIGN_OR_RETURN(RankGrid grid, RankGrid::Create(sizes, 8));
//   grid.Coordinate(5, Axis::kPipeline) == 1;
//   grid.PeersOf(5, {Axis::kTensor}) == {4, 5};
//   grid.Partition({Axis::kData}) == {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
#ifndef MEGATRON_COMM_RANK_GRID_H_
#define MEGATRON_COMM_RANK_GRID_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/tensor/axis.h"

namespace megatron {

enum class RankOrder {
  kPipelineLast,  // tp-cp-ep-dp-pp: ranks of one pipeline stage are contiguous
  kDataLast,      // tp-cp-ep-pp-dp: ranks of one model replica are contiguous
};

// What a user asks for. `data` 0 is what the other axes leave of the world; the data size of the
// expert grid always is. `expert_tensor` 0 is the tensor size of the dense grid.
struct ParallelSizes {
  int tensor = 1;
  int context = 1;
  int data = 0;
  int pipeline = 1;
  int expert = 1;
  int expert_tensor = 0;
  RankOrder order = RankOrder::kPipelineLast;
};

class RankGrid {
 public:
  // The grid of one rank.
  RankGrid() = default;

  // The dense and the expert grid. They fail, with the sizes, where these do not multiply to the
  // world, and where the two grids would not give a pipeline stage the same ranks.
  static absl::StatusOr<RankGrid> Create(const ParallelSizes& sizes, int world_size);
  static absl::StatusOr<RankGrid> CreateExpert(const ParallelSizes& sizes, int world_size);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return axes_[static_cast<int>(axis)].size; }
  // Ranks in a group over `axes`: the product of their sizes.
  int size(AxisSet axes) const;

  int Coordinate(int rank, Axis axis) const;
  // The ranks that differ from `rank` on `axes` only: ascending, with `rank` among them.
  std::vector<int> PeersOf(int rank, AxisSet axes) const;
  // Where `rank` stands in PeersOf(rank, axes).
  int IndexAmongPeers(int rank, AxisSet axes) const;
  // All groups over `axes`, each as PeersOf gives it, by ascending first rank. The same on every
  // rank, so that creating groups in this order cannot deadlock.
  std::vector<std::vector<int>> Partition(AxisSet axes) const;

  // "tp1 dp0 pp1", with the axes that have more than one rank; for messages.
  std::string Describe(int rank) const;

 private:
  struct Extent {
    int size = 1;
    int stride = 1;
  };
  RankGrid(const std::array<int, kNumAxes>& sizes, RankOrder order);
  // The group over `axes` whose smallest rank is `first`.
  std::vector<int> GroupFrom(int first, AxisSet axes) const;

  std::array<Extent, kNumAxes> axes_;           // by Axis
  std::array<Axis, kNumAxes> fastest_first_{};  // the order
  int world_size_ = 1;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_RANK_GRID_H_
