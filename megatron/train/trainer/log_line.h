// The lines that training prints, so that what reads Megatron's logs reads ours.
//
//  [2026-01-31 12:00:00.000000] iteration      100/   10000 | consumed samples:         1600 |
//  elapsed time per iteration (ms): 52.1 | learning rate: 1.500000E-04 | global batch size:    16 |
//  lm loss: 6.123456E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |
//  number of nan iterations:   0 | tokens/s: 628790 | model TFLOP/s: 1.48 | ETA: 8m36s
//
// Up to "nan iterations" a line is Megatron's (core 0.20) byte for byte; what follows is ours.

#ifndef MEGATRON_TRAIN_TRAINER_LOG_LINE_H_
#define MEGATRON_TRAIN_TRAINER_LOG_LINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megatron {

struct NamedLoss {
  std::string name;  // "lm loss"
  double value;
};

// What is gathered between two log lines. A skipped iteration (a gradient overflowed, and nothing
// was updated) has no part in the means, as in Megatron; a nan iteration is a skipped one whose
// loss was not finite.
class IntervalMeans {
 public:
  void Add(const std::vector<NamedLoss>& losses, bool skipped);
  void Clear() { *this = IntervalMeans(); }

  int64_t iterations() const { return advanced_ + skipped_; }
  int64_t skipped() const { return skipped_; }
  int64_t nans() const { return nans_; }
  // Over the iterations that were not skipped; empty where all were.
  std::vector<NamedLoss> Means() const;

 private:
  std::vector<NamedLoss> sums_;
  int64_t advanced_ = 0;
  int64_t skipped_ = 0;
  int64_t nans_ = 0;
};

struct IterationLog {
  absl::Time time;
  int64_t iteration = 0;  // the first one is 1
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;
  double elapsed_ms = 0;  // per iteration, over the interval
  std::optional<double> throughput_tflops;
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  std::vector<NamedLoss> losses;
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<int64_t> num_zeros;
  std::optional<double> params_norm;
  int64_t skipped_iterations = 0;  // in the interval
  int64_t nan_iterations = 0;      // in the interval
};

struct SpeedLog {
  double tokens_per_second = 0;
  double model_tflops = 0;  // TFLOP/s
  // The share of the devices' peak, of 1, where that is known: with causal attention counted once,
  // and with attention in full.
  std::optional<double> mfu, full_mfu;
  absl::Duration time_left = absl::ZeroDuration();
};

// Megatron logs each iteration that is a multiple of the interval, and the first one that the
// program runs.
bool ShouldLog(int64_t iteration, int64_t log_interval, bool is_first_of_this_program);

// With a space at the front and " |" at the end, without a line feed. The time is the machine's
// local one, unless another zone is given.
std::string FormatIterationLine(const IterationLog& log,
                                absl::TimeZone zone = absl::LocalTimeZone());

// Goes after the iteration line: " tokens/s: ... | model TFLOP/s: ... | MFU: 41.3% (46.5% with
// attention in full) | ETA: ...".
std::string FormatSpeed(const SpeedLog& log);

// Three lines: dashes, losses with perplexities and then other values, dashes. `when` is "iteration
// 100".
std::string FormatValidationBlock(const std::string& when, const std::vector<NamedLoss>& losses,
                                  const std::vector<NamedLoss>& others = {});

// e^loss, kept printable as Megatron keeps it: at most e^20.
double Perplexity(double loss);

// "3d04h", "1h02m", "2m05s" or "7s".
std::string FormatTimeLeft(absl::Duration duration);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_LOG_LINE_H_
