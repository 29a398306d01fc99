// What data-parallel ranks do in the steps of 0/1 Adam (Y. Lu et al., arXiv 2202.06009).
#ifndef MEGATRON_OPTIM_RULES_ZERO_ONE_SCHEDULE_H_
#define MEGATRON_OPTIM_RULES_ZERO_ONE_SCHEDULE_H_

#include <cstdint>

#include "megatron/optim/rules/update_rule.h"

namespace megatron {

// Steps are counted from 1. Those up to var_freeze_step that are a multiple of an interval are
// kSum, the others kMean; the interval is 1 at first, and twice as long after each
// var_update_scaler steps that were kSum. Of the steps after it, those that are a multiple of
// another interval are kJoin, the others kLocal; that interval is 1 at first, and twice as long
// after each local_step_scaler steps, but local_step_clipper at most.
struct ZeroOneSchedule {
  int64_t var_freeze_step = 100000;
  int64_t var_update_scaler = 16;
  int64_t local_step_scaler = 32678;
  int64_t local_step_clipper = 16;

  // Returns what ranks do in the step after so many others.
  RankStep StepAfter(int64_t steps) const;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ZERO_ONE_SCHEDULE_H_
