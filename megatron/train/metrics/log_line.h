// Formats the lines that training prints. Programs that read Megatron's logs can read them.
//
//  [2026-01-31 12:00:00.000000] iteration      100/   10000 | consumed samples:         1600 |
//  elapsed time per iteration (ms): 52.1 | learning rate: 1.500000E-04 | global batch size:    16 |
//  lm loss: 6.123456E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |
//  number of nan iterations:   0 | tokens/s: 628790 | model TFLOP/s: 1.48 | ETA: 8m36s
//
// Up to "nan iterations" a line is Megatron's (core 0.20) byte for byte; the rest is ours. The
// losses on up to eight training files stand in front of tokens/s: "lm loss train news: 6.1E+00 |".

#ifndef MEGATRON_TRAIN_METRICS_LOG_LINE_H_
#define MEGATRON_TRAIN_METRICS_LOG_LINE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

// Returns the line of a step whose `interval` is set, with a space at the front and without a line
// feed. The time is the machine's local one, unless another zone is given.
std::string FormatLogLine(const StepMetrics& step, absl::TimeZone zone = absl::LocalTimeZone());

// Returns three lines: dashes, losses with perplexities and then other values, dashes.
std::string FormatValidationBlock(const EvaluationMetrics& evaluation);

// Returns "3d04h", "1h02m", "2m05s" or "7s".
std::string FormatTimeLeft(absl::Duration duration);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_LOG_LINE_H_
