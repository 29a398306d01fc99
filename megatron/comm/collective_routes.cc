#include "megatron/comm/collective_routes.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {
namespace {

// Returns the parent of a place in what spreads from place 0.
int SpreadParent(CollectiveAlgorithm algorithm, int size, int place) {
  return algorithm == CollectiveAlgorithm::kRing ? place - 1 : TreeParent(size, place);
}

int Shifted(int size, int rank, int by) { return (rank + by + size) % size; }

// Appends the steps that leave the sum of the ranks at and below `rank` on top of the stack.
void AddSteps(int size, int rank, std::vector<PartialSumStep>* steps) {
  bool own = false;
  int parts = 0;
  const auto add_own = [&] {
    steps->push_back({parts == 0 ? PartialSumStep::kPush : PartialSumStep::kAdd, rank});
    own = true;
    ++parts;
  };
  for (const int child : SumRoute(CollectiveAlgorithm::kTree, size, rank).children) {
    if (child > rank && !own) add_own();
    AddSteps(size, child, steps);
    if (parts++ > 0) steps->push_back({PartialSumStep::kMerge, 0});
  }
  if (!own) add_own();
}

}  // namespace

int TreeParent(int size, int rank) {
  if (rank == 0) return -1;
  const int bit = rank & -rank;
  const int parent = (rank ^ bit) | (bit << 1);
  return parent < size ? parent : rank ^ bit;
}

int SumRoot(CollectiveAlgorithm algorithm, int size) {
  return algorithm == CollectiveAlgorithm::kRing ? size - 1 : 0;
}

CollectiveRoute SumRoute(CollectiveAlgorithm algorithm, int size, int rank) {
  CHECK(algorithm != CollectiveAlgorithm::kMesh);
  CollectiveRoute route;
  if (algorithm == CollectiveAlgorithm::kRing) {
    route.parent = rank + 1 < size ? rank + 1 : -1;
    if (rank > 0) route.children = {rank - 1};
    route.depth = size - 1 - rank;
    return route;
  }
  return SpreadRoute(algorithm, size, 0, rank);
}

CollectiveRoute SpreadRoute(CollectiveAlgorithm algorithm, int size, int root, int rank) {
  CHECK(algorithm != CollectiveAlgorithm::kMesh);
  const int place = Shifted(size, rank, -root);
  CollectiveRoute route;
  const int parent = SpreadParent(algorithm, size, place);
  if (parent >= 0) route.parent = Shifted(size, parent, root);
  for (int child = 0; child < size; ++child) {
    if (SpreadParent(algorithm, size, child) == place)
      route.children.push_back(Shifted(size, child, root));
  }
  for (int at = parent; at >= 0; at = SpreadParent(algorithm, size, at)) ++route.depth;
  return route;
}

bool IsOnWay(CollectiveAlgorithm algorithm, int size, int root, int to, int rank) {
  int place = Shifted(size, to, -root);
  const int looked_for = Shifted(size, rank, -root);
  while (place >= 0 && place != looked_for) place = SpreadParent(algorithm, size, place);
  return place == looked_for;
}

int LongestWay(CollectiveAlgorithm algorithm, int size) {
  if (algorithm == CollectiveAlgorithm::kRing) return size;
  int depth = 0;
  for (int rank = 0; rank < size; ++rank) {
    depth = std::max(depth, SumRoute(algorithm, size, rank).depth);
  }
  return 2 * depth;
}

std::vector<PartialSumStep> SumSteps(CollectiveAlgorithm algorithm, int size) {
  std::vector<PartialSumStep> steps;
  if (algorithm == CollectiveAlgorithm::kTree) {
    AddSteps(size, 0, &steps);
    return steps;
  }
  for (int rank = 0; rank < size; ++rank) {
    steps.push_back({rank == 0 ? PartialSumStep::kPush : PartialSumStep::kAdd, rank});
  }
  return steps;
}

int SumDepth(absl::Span<const PartialSumStep> steps) {
  int depth = 0, most = 0;
  for (const PartialSumStep& step : steps) {
    if (step.kind == PartialSumStep::kPush) ++depth;
    if (step.kind == PartialSumStep::kMerge) --depth;
    most = std::max(most, depth);
  }
  return most;
}

}  // namespace megatron
