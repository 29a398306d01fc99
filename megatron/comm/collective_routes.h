// The trees along which the ring's and the tree's data moves, and the order in which they sum.
//
// Sums go up to one rank, and results spread from one. Both ways are the same for every element, so
// the order of a sum depends on the number of ranks alone, not on the place or the size of a
// tensor:
//
//   ring   0 + 1 + 2 + ... + (n - 1), as in the mesh
//   tree   the ranks in their order, but bracketed as the tree is: 0 + ((1 + 2) + 3) of four
//
// The tree of n ranks is NCCL's: rank r > 0 whose lowest set bit is b has the parent (r ^ b) | 2 b,
// or r ^ b if there is no such rank. So a rank adds what is below it on its left, itself, and what
// is below it on its right:
//
//   0 - 4 +- 2 +- 1      of eight ranks
//         |    +- 3
//         +- 6 +- 5
//              +- 7
//
// What spreads from another rank takes the same way with all ranks shifted.
#ifndef MEGATRON_COMM_COLLECTIVE_ROUTES_H_
#define MEGATRON_COMM_COLLECTIVE_ROUTES_H_

#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/collective.h"

namespace megatron {

// A rank's neighbours in a tree.
struct CollectiveRoute {
  int parent = -1;            // -1: the rank is the root
  std::vector<int> children;  // ascending
  int depth = 0;              // steps from the root
};

// The algorithm is kRing or kTree in all functions but SumSteps.

// Returns a rank's parent in the tree whose root is rank 0; -1: it is the root.
int TreeParent(int size, int rank);
// Returns the rank at which sums are complete, and from which they spread.
int SumRoot(CollectiveAlgorithm algorithm, int size);
// Returns the way up of partial sums.
CollectiveRoute SumRoute(CollectiveAlgorithm algorithm, int size, int rank);
// Returns the way of what spreads from `root`. Its children are not ascending, but shifted.
CollectiveRoute SpreadRoute(CollectiveAlgorithm algorithm, int size, int root, int rank);
// Returns whether what goes from `root` to `to` alone passes `rank`, which may be either.
bool IsOnWay(CollectiveAlgorithm algorithm, int size, int root, int to, int rank);
// Returns the most steps that a segment makes up to the root and down to a rank.
int LongestWay(CollectiveAlgorithm algorithm, int size);

// A step of summing over all ranks, on a stack of partial sums.
struct PartialSumStep {
  enum Kind { kPush, kAdd, kMerge } kind = kPush;
  int rank = 0;  // pushed, or added to the top; kMerge adds the top to the sum below it
};
// Returns the algorithm's order of sums; the mesh's too.
std::vector<PartialSumStep> SumSteps(CollectiveAlgorithm algorithm, int size);
// Returns the most partial sums that the steps stack.
int SumDepth(absl::Span<const PartialSumStep> steps);

}  // namespace megatron

#endif  // MEGATRON_COMM_COLLECTIVE_ROUTES_H_
