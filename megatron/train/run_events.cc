#include "megatron/train/run_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/train/trainer/run_identity.h"

namespace megatron {

void RunEvents::Open(bool one_of_several, TrainingRun* run) {
  if (run->options.loop.on_event.empty()) return;
  run->on_event = [this](const RunEvent& event) { command_->Raise(event); };
  if (command_ != nullptr) return;
  EventCommandOptions options;
  options.command = run->options.loop.on_event;
  options.run_id = RunId(run->description.identity);
  options.save = run->options.checkpoint.save;
  // A launcher ends a rank that stays behind the others without doing anything.
  const absl::Duration stuck = run->options.ranks.stuck_timeout;
  if (one_of_several && stuck > absl::ZeroDuration())
    options.last_wait = std::min(options.last_wait, stuck / 4);
  command_ = std::make_unique<EventCommand>(std::move(options));
  current_.store(command_.get());
}

void RunEvents::Tell(RunEventKind kind, int64_t iteration, const std::string& message,
                     std::optional<int> exit_code) const {
  EventCommand* const command = current_.load();
  if (command == nullptr) return;
  RunEvent event;
  event.kind = kind;
  event.time = absl::Now();
  event.iteration = iteration;
  event.message = message;
  event.exit_code = exit_code;
  command->Raise(event);
}

void RunEvents::TellEnd(int code, int64_t iteration, const absl::Status& failure) {
  if (told_end_.exchange(true)) return;
  Tell(RunEventKind::kEnd, iteration,
       failure.ok() ? absl::StrCat("training ends with code ", code)
                    : std::string(failure.message()),
       code);
}

void RunEvents::Finish() const {
  if (EventCommand* const command = current_.load()) command->Finish();
}

}  // namespace megatron
