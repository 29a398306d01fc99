// The output of a rank while it trains: its lines share the terminal with the progress bar.
#ifndef MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_
#define MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_

#include <string>

#include "megatron/comm/watch/rank_progress.h"
#include "megatron/train/metrics/progress_bar.h"

namespace megatron {

// The console that the rank's thread uses. The watchdog sees when the rank waits for a reader of
// its output.
class RankConsole {
 public:
  // One rank prints for all: only that one `prints`. `progress` must outlive this.
  RankConsole(bool prints, RankProgress* progress) : prints_(prints), progress_(*progress) {}

  bool prints() const { return prints_; }

  // Print to stdout a text that is the same on all ranks.
  void Print(const std::string& text);
  void PrintLine(const std::string& line) { Print(line + "\n"); }
  // Prints to stdout a text of this rank alone, whether it prints for all or not.
  void PrintOwn(const std::string& text);
  // Print "WARNING: " and a text that is the same on all ranks, or of this rank alone.
  void Warn(const std::string& message) { Print("WARNING: " + message + "\n"); }
  void WarnOwn(const std::string& message) { PrintOwn("WARNING: " + message + "\n"); }

  void ShowProgress(const Progress& progress);
  void ClearProgress() { bar_.Clear(); }

 private:
  const bool prints_;
  RankProgress& progress_;
  ProgressBar bar_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_
