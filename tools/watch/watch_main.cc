// Shows runs while they go: curves, numbers, where the time goes and what has happened.
//
//   watch run
//   watch small large          several runs
//   watch --once run           one screen, and no more
//
// On a terminal it draws the whole screen anew; elsewhere it prints a line at each new step that it
// sees. Ctrl-C ends it.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/common/tool_main.h"
#include "tools/report/read_run.h"
#include "tools/watch/full_screen.h"
#include "tools/watch/screen.h"

ABSL_FLAG(double, every, 2, "Seconds between two looks at the runs.");
ABSL_FLAG(bool, once, false,
          "Prints one screen of 80 columns or of the terminal's size, and ends.");

namespace megatron::watch {
namespace {

constexpr size_t kMostRuns = 6;
// Reading takes at most one part in so many of a processor's time, however long the files are.
constexpr int kPauseFactor = 20;

std::vector<WatchedRun> ReadAll(const std::vector<std::string>& paths) {
  std::vector<WatchedRun> runs;
  for (const std::string& path : paths)
    runs.push_back({path, report::ReadRun(PosixFileSystem(), path)});
  return runs;
}

bool IsTerminal() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string(kind) != "dumb";
}

// Returns the time until the next look, if the last one began then.
absl::Duration PauseAfter(absl::Time begin) {
  return std::max(absl::Seconds(absl::GetFlag(FLAGS_every)), kPauseFactor * (absl::Now() - begin));
}

// Scripts learn from the exit code that a run can't be read.
absl::Status ShowOnce(const std::vector<std::string>& paths) {
  const std::vector<WatchedRun> runs = ReadAll(paths);
  const std::vector<std::string> lines = ScreenOf(runs, ScreenSize(), absl::Now());
  MEGATRON_RETURN_IF_ERROR(WriteToStdout(absl::StrCat(absl::StrJoin(lines, "\n"), "\n")));
  for (const WatchedRun& run : runs) MEGATRON_RETURN_IF_ERROR(run.record.status());
  return absl::OkStatus();
}

// The screen is drawn anew at once when its size changes, from what was read last.
void ShowScreens(const std::vector<std::string>& paths) {
  const FullScreen screen;
  for (;;) {
    const absl::Time begin = absl::Now();
    const std::vector<WatchedRun> runs = ReadAll(paths);
    const absl::Time next = absl::Now() + PauseAfter(begin);
    do {
      screen.Draw(ScreenOf(runs, screen.size(), absl::Now()));
      if (!WaitFor(std::max(next - absl::Now(), absl::Milliseconds(1)))) return;
    } while (absl::Now() < next);
  }
}

absl::Status PrintLines(const std::vector<std::string>& paths) {
  std::vector<std::string> last(paths.size());
  for (;;) {
    const absl::Time begin = absl::Now();
    const std::vector<WatchedRun> runs = ReadAll(paths);
    for (size_t i = 0; i < runs.size(); ++i) {
      std::string line = LineOf(runs[i]);
      if (line == last[i]) continue;
      MEGATRON_RETURN_IF_ERROR(WriteToStdout(line + "\n"));
      last[i] = std::move(line);
    }
    if (!WaitFor(PauseAfter(begin))) return absl::OkStatus();
  }
}

absl::Status Watch(const std::vector<std::string>& paths) {
  if (paths.empty() || paths.size() > kMostRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected from 1 to ", kMostRuns,
                     " runs: directories that checkpoint.save named, or files metrics.jsonl"));
  }
  const double every = absl::GetFlag(FLAGS_every);
  if (!(every >= 0.1 && every <= 3600)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--every=", every, " is not between 0.1 and 3600 seconds"));
  }
  if (absl::GetFlag(FLAGS_once)) return ShowOnce(paths);
  CatchEndSignals();
  if (!IsTerminal()) return PrintLines(paths);
  ShowScreens(paths);
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron::watch

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Shows runs while they go: watch [flags] RUN...",
                           megatron::watch::Watch);
}
