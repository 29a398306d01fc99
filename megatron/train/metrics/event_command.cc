#include "megatron/train/metrics/event_command.h"

#include <cstdio>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "megatron/base/host_name.h"
#include "megatron/base/quantity.h"
#include "megatron/base/run_command.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

constexpr size_t kMostWaiting = 32;

// It is one write, so that lines of other threads do not come between.
void Warn(const std::string& text) {
  const std::string line = absl::StrCat("WARNING: ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

struct EventCommand::State {
  EventCommandOptions options;
  absl::Mutex mutex;
  std::deque<std::string> waiting ABSL_GUARDED_BY(mutex);  // inputs of commands
  bool running ABSL_GUARDED_BY(mutex) = false;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool said_dropped ABSL_GUARDED_BY(mutex) = false;
  bool finished ABSL_GUARDED_BY(mutex) = false;

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stop || !waiting.empty(); }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return waiting.empty() && !running; }
};

EventCommand::EventCommand(EventCommandOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
  thread_ = std::thread([state = state_] { Work(state); });
}

EventCommand::~EventCommand() {
  Finish();
  bool idle;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stop = true;
    state_->waiting.clear();
    idle = state_->IsIdle();
  }
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void EventCommand::Raise(const RunEvent& event) {
  std::string input = EventJson(event, state_->options.run_id, state_->options.save);
  absl::MutexLock lock(&state_->mutex);
  if (state_->waiting.size() < kMostWaiting) {
    state_->waiting.push_back(std::move(input));
  } else if (!std::exchange(state_->said_dropped, true)) {
    Warn("logging.on_event: events come faster than the command runs, and some are dropped");
  }
}

void EventCommand::Finish() {
  absl::MutexLock lock(&state_->mutex);
  if (std::exchange(state_->finished, true)) return;
  state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::IsIdle),
                                 state_->options.last_wait);
  if (!state_->waiting.empty()) {
    Warn(absl::StrCat("logging.on_event: the command was too slow for the last ",
                      FormatQuantity(static_cast<int64_t>(state_->waiting.size()), "event"),
                      ", of which it has not been told"));
  }
}

void EventCommand::Work(const std::shared_ptr<State>& state) {
  const EventCommandOptions& options = state->options;
  bool said_failed = false;
  for (;;) {
    std::string input;
    {
      absl::MutexLock lock(&state->mutex);
      state->running = false;
      state->mutex.Await(absl::Condition(state.get(), &State::HasWork));
      if (state->stop) return;
      input = std::move(state->waiting.front());
      state->waiting.pop_front();
      state->running = true;
    }
    const absl::Status status = RunCommand(options.command, input, options.limit);
    if (!status.ok() && !std::exchange(said_failed, true)) {
      Warn(absl::StrCat("logging.on_event: the command failed: ", status.message(),
                        "; training continues, and further failures are not printed"));
    }
  }
}

std::string EventJson(const RunEvent& event, const std::string& run_id, const std::string& save) {
  nlohmann::ordered_json json;
  json["event"] = Name(event.kind);
  if (event.iteration >= 0) json["iteration"] = event.iteration;
  json["message"] = event.message;
  if (event.exit_code) json["exit_code"] = *event.exit_code;
  json["run"] = run_id;
  if (!save.empty()) json["save"] = save;
  json["host"] = HostName();
  json["time"] = absl::FormatTime(absl::RFC3339_sec, event.time, absl::UTCTimeZone());
  // Messages may quote any file's bytes.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace megatron
