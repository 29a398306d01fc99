// What tensor-parallel ranks must share out evenly, along one dim and over a grid
// (docs/tensor_grid.md). The trainer's validation and predictions refuse what is not.
//
//   MEGATRON_ASSIGN_OR_RETURN(const PlanGrid grid, GridOfMode("2.5d", /*ranks=*/8, /*depth=*/2));
//   ForEachTensorCut(8, grid, [&](const TensorCut& cut) { cut.IsEven(value); });
#ifndef MEGATRON_PLAN_TENSOR_CUTS_H_
#define MEGATRON_PLAN_TENSOR_CUTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/plan/tensor_grid_traffic.h"

namespace megatron {

// Returns the grid that the ranks form with a value of parallel.tensor_parallel_mode other than
// "1d". It fails if that is no mode, or the ranks do not form the grid; the message says how many
// ranks it needs.
absl::StatusOr<PlanGrid> GridOfMode(absl::string_view mode, int64_t ranks, int64_t depth);

enum class CutSize {
  kHidden,
  kFfn,
  kHeads,
  kQueryGroups,
  kHeadChannels,        // the heads times the channels of each
  kVocabularyMultiple,  // of which the padded vocabulary is a multiple
  kSamples,             // those of a micro-batch
};

// A size that is shared out over so many ranks, or rows and columns of them.
struct TensorCut {
  CutSize size = CutSize::kHidden;
  int64_t parts = 1;
  const char* of = "";        // what the parts are: "rows and columns"
  bool may_be_fewer = false;  // several ranks may have the same one

  // Numbers of a table of runs need not be whole.
  bool IsEven(double value) const;
};

// Calls body(TensorCut) for each size that is cut: for all ranks without a grid, else for those of
// the grid.
template <typename Body>
void ForEachTensorCut(int64_t ranks, const PlanGrid& grid, const Body& body) {
  if (!grid.is_grid()) {
    constexpr const char* kRanks = "tensor-parallel ranks";
    for (const CutSize size : {CutSize::kHeads, CutSize::kFfn, CutSize::kVocabularyMultiple})
      body(TensorCut{size, ranks, kRanks});
    body(TensorCut{CutSize::kQueryGroups, ranks, kRanks, /*may_be_fewer=*/true});
    return;
  }
  constexpr const char *kSide = "rows and columns", *kRows = "rows on all levels";
  const int64_t rows = grid.side * grid.depth;
  // The levels of a cube have parts of a weight's inputs and of the words.
  const int64_t cut = grid.is_cube ? rows : grid.side;
  const char* const of_cut = grid.is_cube ? kRows : kSide;
  body(TensorCut{CutSize::kHidden, cut, of_cut});
  body(TensorCut{CutSize::kFfn, cut, of_cut});
  body(TensorCut{CutSize::kHeads, grid.side, kSide});
  body(TensorCut{CutSize::kQueryGroups, grid.side, kSide});
  if (grid.is_cube) body(TensorCut{CutSize::kHeadChannels, cut, of_cut});
  body(TensorCut{CutSize::kVocabularyMultiple, cut, of_cut});
  body(TensorCut{CutSize::kSamples, rows, grid.depth > 1 ? kRows : kSide});
}

}  // namespace megatron

#endif  // MEGATRON_PLAN_TENSOR_CUTS_H_
