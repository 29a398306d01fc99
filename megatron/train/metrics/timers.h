// Megatron's timers: the names and levels of --timing-log-level, the spans that they stand for, and
// the text that Megatron prints.
//
//   (min, max) time across ranks (ms):
//       forward-backward ...............................: (48.91, 49.02)
//       optimizer ......................................: (1.53, 1.60)
#ifndef MEGATRON_TRAIN_METRICS_TIMERS_H_
#define MEGATRON_TRAIN_METRICS_TIMERS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

enum class TimerOption { kMax, kMinMax, kAll };

struct Timer {
  const char* name;
  int level;         // it is reported from this timing_log_level on
  const char* tag;   // name in TensorBoard
  const char* help;  // a sentence
};

constexpr int kNumTimers = 19;

// All timers, in the order in which they are printed.
absl::Span<const Timer> Timers();
// Returns the number of the timer of the spans with this name; -1 if there is none.
int TimerOfSpan(absl::string_view span);
// The timer that is no span's: all time that checkpoints take from training.
constexpr int kSaveTimer = 0;

// Returns Megatron's text, without a line feed at the end, of the timers up to this level. Rank r's
// timer t took `milliseconds[r][t]` per iteration; a rank's 0 is left out, as by Megatron, and so
// is a timer that no rank has. Empty if all are.
std::string FormatTimers(absl::Span<const std::vector<double>> milliseconds, int level,
                         TimerOption option);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_TIMERS_H_
