#include "megatron/optim/rules/zero_one_schedule.h"

#include <algorithm>

namespace megatron {

RankStep ZeroOneSchedule::StepAfter(int64_t steps) const {
  const int64_t step = steps + 1;
  if (step > var_freeze_step) {
    const int64_t doublings = (step - var_freeze_step - 1) / local_step_scaler;
    int64_t interval = 1;
    for (int64_t i = 0; i < doublings && interval < local_step_clipper; ++i)
      interval = std::min(local_step_clipper, 2 * interval);
    return step % interval == 0 ? RankStep::kJoin : RankStep::kLocal;
  }
  // `last` is the last step of those with an interval.
  int64_t interval = 1;
  for (int64_t last = var_update_scaler; last < step;
       last = (last / interval + var_update_scaler) * interval) {
    interval *= 2;
  }
  return step % interval == 0 ? RankStep::kSum : RankStep::kMean;
}

}  // namespace megatron
