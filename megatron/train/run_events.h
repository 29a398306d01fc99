// The user's command that hears of a run's events, if there is one.
#ifndef MEGATRON_TRAIN_RUN_EVENTS_H_
#define MEGATRON_TRAIN_RUN_EVENTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "megatron/train/metrics/event_command.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {

// Safe for threads, but for Open().
class RunEvents {
 public:
  // Makes the command hear of the run's events, if the user has one.
  void Open(bool one_of_several, TrainingRun* run);
  // Tells the command that the run has lost a rank or ends.
  void Tell(RunEventKind kind, int64_t iteration, const std::string& message,
            std::optional<int> exit_code) const;
  // Tells the end of the run, unless that has been told.
  void TellEnd(int code, int64_t iteration, const absl::Status& failure);
  // Waits a moment for the commands that still run.
  void Finish() const;

 private:
  std::unique_ptr<EventCommand> command_;  // null: none
  // The same, for the monitor's threads, which may look before there is one.
  std::atomic<EventCommand*> current_{nullptr};
  std::atomic<bool> told_end_{false};
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RUN_EVENTS_H_
