// The last lines of a run: what came of it, and what to type next.
#ifndef MEGATRON_TRAIN_RANK_CLOSING_H_
#define MEGATRON_TRAIN_RANK_CLOSING_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/metrics/run_totals.h"
#include "megatron/train/rank/pretrain_run.h"

namespace megatron {

struct RunEnd {
  ExitCode code = kExitDone;
  int64_t iteration = 0;
  bool budget_spent = false;  // whether the privacy budget of a federated run has ended it
  RunTotals totals;
  int64_t peak_bytes = 0;  // the most that a rank has held
  absl::Duration elapsed;  // time since the program started
};

// Returns at most 9 lines, each ended, or nothing for a run that had nothing to do. A run that
// stopped early and was saved says how to continue it; one that finished, what can be done with its
// model.
std::string FormatClosing(const PretrainRun& run, const RunEnd& end);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_CLOSING_H_
