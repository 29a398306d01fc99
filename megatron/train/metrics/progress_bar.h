// One line on a terminal that is drawn over and over while training goes on:
//
//   step 120/1000 [=====>                        ] 12% | loss 3.214 | 31456 tokens/s | ETA 8m36s
//
// If the output is not a terminal (but a file or a pipe), nothing is printed.

#ifndef MEGATRON_TRAIN_METRICS_PROGRESS_BAR_H_
#define MEGATRON_TRAIN_METRICS_PROGRESS_BAR_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/time/time.h"

namespace megatron {

struct Progress {
  int64_t iteration = 0;
  int64_t train_iters = 0;
  double loss = 0;
  double tokens_per_second = 0;
  absl::Duration time_left = absl::ZeroDuration();
};

struct ProgressStyle {
  int columns = 80;  // width of the terminal; the line stays shorter
  bool color = false;
};

// Returns the line, without a line feed.
std::string FormatProgress(const Progress& progress, const ProgressStyle& style);

// A bar that one thread uses.
class ProgressBar {
 public:
  // Draws on `stream` if it is a terminal. Colors the bar unless $NO_COLOR is set. A terminal whose
  // $TERM is "dumb" gets nothing.
  explicit ProgressBar(std::FILE* stream = stderr);
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  bool enabled() const { return enabled_; }

  // Draws over the last line, at most ten times a second.
  void Show(const Progress& progress);

  // Removes the line. To be called before anything else is printed on the same terminal.
  void Clear();

 private:
  std::FILE* stream_;
  bool enabled_ = false;
  bool color_ = false;
  bool drawn_ = false;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_PROGRESS_BAR_H_
