// The number of tokens of a sample as a function of the step: DeepSpeed's curriculum by sequence
// length, with its schedule functions. It has no state.
//
//   fixed_linear   min + (t / total_steps) * (max - min), rounded down to a multiple of `multiple`
//   fixed_root     the same with (t / total_steps)^(1 / root_degree)
//   fixed_discrete lengths[i] up to step last_steps[i], the last length behind all of them
#ifndef MEGATRON_DATA_LENGTH_SCHEDULE_H_
#define MEGATRON_DATA_LENGTH_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace megatron {

struct LengthSchedule {
  // The first two schedules; fixed_linear has degree 1. They give `max` from total_steps on.
  int64_t min = 0, max = 0;
  int64_t total_steps = 0;
  int64_t multiple = 1;  // divides min and max
  double root_degree = 1;
  // fixed_discrete, if there are any. There is one length more than last steps.
  std::vector<int64_t> lengths, last_steps;

  // Returns whether there is a schedule.
  bool enabled() const { return total_steps > 0 || !lengths.empty(); }
  // Returns the length of step `step`, the first of which is 1. There must be a schedule.
  int64_t At(int64_t step) const;
  // Returns the sum of the lengths of the first `steps` steps. It takes as long as total_steps.
  int64_t SumOver(int64_t steps) const;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_LENGTH_SCHEDULE_H_
