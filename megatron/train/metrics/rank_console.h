// What a rank prints while it trains: its lines share the terminal with the progress bar.
#ifndef MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_
#define MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_

#include <string>

#include "megatron/comm/watch/rank_progress.h"
#include "megatron/train/metrics/progress_bar.h"

namespace megatron {

// Used by the rank's thread. Whoever watches the rank sees when it waits for a reader.
class RankConsole {
 public:
  // One rank prints for all: only that one `prints`. `progress` must outlive this.
  RankConsole(bool prints, RankProgress* progress) : prints_(prints), progress_(*progress) {}

  bool prints() const { return prints_; }

  // Print to stdout what all ranks know alike.
  void Print(const std::string& text);
  void PrintLine(const std::string& line) { Print(line + "\n"); }
  // Prints to stdout what this rank alone knows, whether it prints for all or not.
  void PrintOwn(const std::string& text);
  // Logs what all ranks know alike.
  void LogError(const std::string& message);
  // Logs what this rank alone knows.
  void LogOwnError(const std::string& message);

  void ShowProgress(const Progress& progress);
  void ClearProgress() { bar_.Clear(); }

 private:
  const bool prints_;
  RankProgress& progress_;
  ProgressBar bar_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RANK_CONSOLE_H_
