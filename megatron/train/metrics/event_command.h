// The user's command that runs at each event of a run (logging.on_event).
#ifndef MEGATRON_TRAIN_METRICS_EVENT_COMMAND_H_
#define MEGATRON_TRAIN_METRICS_EVENT_COMMAND_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "megatron/train/metrics/run_event.h"

namespace megatron {

struct EventCommandOptions {
  std::string command;                       // what /bin/sh runs
  std::string run_id, save;                  // fields of the JSON object
  absl::Duration limit = absl::Seconds(10);  // the time that one run of the command has
  // The time that the end of the program waits for commands. One that is running then goes on.
  absl::Duration last_wait = absl::Seconds(5);
};

// Runs the command once for each event, one after another, on a thread of its own, with the event
// as a JSON object on standard input. The first failure of the command is printed to stderr. Events
// that come while many others wait are dropped, and this is printed once, too.
//
// Threads: any may raise an event. None waits for a command.
class EventCommand {
 public:
  explicit EventCommand(EventCommandOptions options);
  // Waits as Finish does.
  ~EventCommand();

  void Raise(const RunEvent& event);
  // Waits until all commands have run, at most `last_wait`, the first time that it is called.
  // Nothing is raised after it.
  void Finish();

 private:
  struct State;
  static void Work(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // outlives this while a command runs
  std::thread thread_;
};

// Returns what the command reads: one line.
std::string EventJson(const RunEvent& event, const std::string& run_id, const std::string& save);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_EVENT_COMMAND_H_
