// The ways in which the same tensor-parallel ranks can cut a model, side by side: along one dim and
// over the grids that they form (docs/tensor_grid.md).
#ifndef MEGATRON_PLAN_TENSOR_FORMS_H_
#define MEGATRON_PLAN_TENSOR_FORMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

struct TensorForm {
  PlanGrid grid;                      // none: 1D
  bool is_sequence_parallel = false;  // whether 1D shares out rows; grids do
  int64_t samples = 1;                // a micro-batch must have a multiple of so many samples
  // Why the layout can't have this form; empty: it can. If it can't, the next three are 0.
  std::string refusal;
  double received = 0;      // bytes that a rank receives in a layer's passes of a micro-batch
  double seconds = 0;       // those that a step is predicted to take
  double memory_bytes = 0;  // the most that a rank holds
  // The tokens of a micro-batch from which on a rank receives less than in 1D, and a step is
  // predicted to be shorter; nothing: it is so with no number of tokens, the grid can't cut the
  // model, or, of the step, 1D can't.
  std::optional<int64_t> less_from;
  std::optional<int64_t> faster_from;

  // Returns "1d", "2d", "2.5d" or "3d": the value of parallel.tensor_parallel_mode.
  const char* mode() const;
  // Returns the same with the depth: "2.5d of depth 2".
  std::string name() const;
};

// Returns 1D, and each grid that the layout's tensor-parallel ranks form. Steps and refusals are
// those of PredictStep() for the layout's micro-batch. Where the layout has a grid, 1D shares out
// rows if AssumesSequenceParallel().
std::vector<TensorForm> CompareTensorForms(const Hardware& gpu, const Implementation& program,
                                           const MeasuredKernels& kernels, const PlanModel& model,
                                           const PlanLayout& layout);

}  // namespace megatron

#endif  // MEGATRON_PLAN_TENSOR_FORMS_H_
