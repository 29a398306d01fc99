// One line on a terminal that is drawn over and over while training goes on:
//
//   step 120/1000 [=====>                        ] 12% | loss 3.214 | 31456 tokens/s | ETA 8m36s
//
// Where the output is no terminal (a file, a pipe), nothing is printed.

#ifndef MEGATRON_TRAIN_TRAINER_PROGRESS_H_
#define MEGATRON_TRAIN_TRAINER_PROGRESS_H_

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
  int columns = 80;  // of the terminal; the line stays shorter
  bool color = false;
};

// Without a line feed.
std::string FormatProgress(const Progress& progress, const ProgressStyle& style);

// For one thread.
class ProgressLine {
 public:
  // Draws on `stream` if it is a terminal. Colors it unless $NO_COLOR is set or $TERM is "dumb",
  // which draws nothing at all.
  explicit ProgressLine(std::FILE* stream = stderr);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool enabled() const { return enabled_; }

  // Draws over the last line, at most ten times a second.
  void Show(const Progress& progress);

  // Takes the line away, to be called before anything else is printed on the same terminal.
  void Clear();

 private:
  std::FILE* stream_;
  bool enabled_ = false;
  bool color_ = false;
  bool drawn_ = false;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_PROGRESS_H_
