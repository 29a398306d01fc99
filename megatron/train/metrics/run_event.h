// What happens to a run besides steps and evaluations, for whoever watches it.
#ifndef MEGATRON_TRAIN_METRICS_RUN_EVENT_H_
#define MEGATRON_TRAIN_METRICS_RUN_EVENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace megatron {

enum class RunEventKind : int {
  kStart,       // training begins
  kNan,         // the loss or a gradient is not finite: the first such step in a row
  kSpike,       // the loss, or the norm of the gradients, is far above those before
  kPredicted,   // the run has compared itself with its prediction
  kEvaluated,   // the model was evaluated on tasks
  kSaved,       // a checkpoint is saved
  kSaveFailed,  // a checkpoint could not be saved, and training goes on
  kOuterRound,  // a round of the outer server has ended, or the island has joined it
  kRerun,       // a step was computed again, and what that has found
  kRankLost,    // a rank has gone, hangs or computes without end
  kRecovered,   // training goes on in the processes that are left, or with more of them
  kEnd,         // the run ends, well or not
};
constexpr int kNumRunEventKinds = static_cast<int>(RunEventKind::kEnd) + 1;

// The name in JSON and in Prometheus.
constexpr const char* Name(RunEventKind kind) {
  constexpr const char* kNames[] = {"start",     "nan",       "spike",       "predicted",
                                    "evaluated", "saved",     "save_failed", "outer_round",
                                    "rerun",     "rank_lost", "recovered",   "end"};
  return kNames[static_cast<int>(kind)];
}

struct RunEvent {
  RunEventKind kind = RunEventKind::kStart;
  absl::Time time;
  int64_t iteration = 0;         // the last step that was taken or begun; negative: unknown
  std::string message;           // a line for people
  std::optional<int> exit_code;  // the run's, at its end
};

using RunEventListener = std::function<void(const RunEvent&)>;

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RUN_EVENT_H_
