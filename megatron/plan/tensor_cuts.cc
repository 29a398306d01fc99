#include "megatron/plan/tensor_cuts.h"

#include <cmath>

#include "absl/status/status.h"

namespace megatron {

absl::StatusOr<PlanGrid> GridOfMode(absl::string_view mode, int64_t ranks, int64_t depth) {
  const bool is_cube = mode == "3d", has_levels = mode == "2.5d";
  if (!is_cube && !has_levels && mode != "2d")
    return absl::InvalidArgumentError("is no mode of tensor parallelism");
  if (has_levels && depth < 2)
    return absl::InvalidArgumentError("needs a depth of 2 or more: one level of ranks is 2d");
  PlanGrid grid;
  grid.is_cube = is_cube;
  if (has_levels) grid.depth = depth;
  for (grid.side = 2; grid.side * grid.side <= ranks; ++grid.side) {
    if (is_cube) grid.depth = grid.side;
    if (grid.ranks() == ranks) return grid;
  }
  return absl::InvalidArgumentError(
      has_levels ? "needs a square number of ranks, 4, 9, 16, ..., times the depth"
      : is_cube  ? "needs a cubic number of ranks: 8, 27, 64, ..."
                 : "needs a square number of ranks: 4, 9, 16, ...");
}

bool TensorCut::IsEven(double value) const {
  const double count = double(parts);
  return std::fmod(value, count) == 0 ||
         (may_be_fewer && value > 0 && std::fmod(count, value) == 0);
}

}  // namespace megatron
