// Some of the experts that a rank holds, and the rows that it has of them.
#ifndef MEGATRON_LAYERS_MOE_EXPERT_PART_H_
#define MEGATRON_LAYERS_MOE_EXPERT_PART_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Experts [begin, end) of this rank's; unless it is said, all of them.
struct ExpertRange {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();
};

// Rows [begin, end) of all rows that the rank has are those of the experts.
struct ExpertPart {
  ExpertRange experts;
  int64_t begin = 0, end = 0;
  std::vector<ops::RowGroup> groups;  // these rows, counted from the first of them

  // Returns the part's rows of a tensor with all rows.
  Tensor Of(const Tensor& x_RC) const { return x_RC.Slice(0, begin, end); }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_EXPERT_PART_H_
