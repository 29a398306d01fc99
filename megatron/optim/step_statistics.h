// What the ranks add up of a step: by some of it they decide about the update, the rest is logged.
#ifndef MEGATRON_OPTIM_STEP_STATISTICS_H_
#define MEGATRON_OPTIM_STEP_STATISTICS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "megatron/comm/process_groups.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct StepSumsOptions {
  double unscale = 1;  // gradients are multiplied by it
  // Whether data-parallel ranks have gradients of their own, which all count.
  bool own_gradients = false;
  bool stop_requested = false;  // by this rank
  bool log_requested = false;   // by this rank
  // The ranks in this one's place in the other islands; null: there are none.
  const ProcessGroup* islands = nullptr;
};

// Sums over all ranks: `squares` over an island, the others over all islands; all 0 on the meta
// device.
struct StepSums {
  double squares = 0;     // of the gradients
  double non_finite = 0;  // not 0 if a gradient is infinite or NaN
  double stop_requests = 0;
  double log_requests = 0;
  double squares_of_islands = 0;
};

// All ranks call all methods in the same order, and get the same answers. Sums are taken in an
// order that does not depend on what is sharded, nor on where gradients and weights lie.
class StepStatistics {
 public:
  // The buffers must outlive it.
  StepStatistics(const ParameterBuffers* buffers, MemoryLedger* ledger);

  // Gradients must be complete over ranks, unless they are the ranks' own. Fails if a collective
  // failed since the world was made.
  absl::StatusOr<StepSums> SumStep(const StepSumsOptions& options, const ProcessGroups& groups,
                                   const Stream& stream);
  // The number of elements of the whole model whose gradient is exactly zero. The gradients must be
  // complete.
  int64_t CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const;
  // The L2 norm of the whole model's master weights; undefined after an error of the buffers' file.
  double ParametersNorm(const ProcessGroups& groups, const Stream& stream) const;

  // Memory for what is not on the device as fp32, and is computed with there: flat; empty where all
  // is.
  Tensor scratch() const;

 private:
  const ParameterBuffers* buffers_;
  Buffer statistics_;
  HostMirror sums_, count_;  // mirrors of parts of statistics_
  Buffer scratch_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_STEP_STATISTICS_H_
