// What tools:watch shows of runs, as lines of text.
#ifndef MEGATRON_TOOLS_WATCH_SCREEN_H_
#define MEGATRON_TOOLS_WATCH_SCREEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/report/read_run.h"

namespace megatron::watch {

// A run as it was last read; an error where nothing is there yet.
struct WatchedRun {
  std::string path;
  absl::StatusOr<report::RunRecord> record;
};

struct ScreenSize {
  int columns = 80, rows = 24;
};

// Returns at most `rows` lines of at most `columns` characters. One run has a screen of its own:
// its numbers, curves of loss and speed, where the time goes, memory, the slowest rank and the last
// events. Of several runs each has its numbers and a curve of its loss.
std::vector<std::string> ScreenOf(const std::vector<WatchedRun>& runs, ScreenSize size,
                                  absl::Time now);

// Returns one line about a run for whoever keeps a log: "iteration 40 of 100 (40 %) | lm loss ...".
std::string LineOf(const WatchedRun& run);

}  // namespace megatron::watch

#endif  // MEGATRON_TOOLS_WATCH_SCREEN_H_
