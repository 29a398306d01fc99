#include "megatron/train/trainer/log_line.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace megatron {

void IntervalMeans::Add(const std::vector<NamedLoss>& losses, bool skipped) {
  if (skipped) {
    ++skipped_;
    nans_ += std::any_of(losses.begin(), losses.end(),
                         [](const NamedLoss& loss) { return !std::isfinite(loss.value); });
    return;
  }
  ++advanced_;
  for (const NamedLoss& loss : losses) {
    const auto sum = std::find_if(sums_.begin(), sums_.end(),
                                  [&](const NamedLoss& known) { return known.name == loss.name; });
    if (sum == sums_.end()) {
      sums_.push_back(loss);
    } else {
      sum->value += loss.value;
    }
  }
}

std::vector<NamedLoss> IntervalMeans::Means() const {
  std::vector<NamedLoss> means = sums_;
  for (NamedLoss& mean : means) mean.value /= static_cast<double>(std::max<int64_t>(1, advanced_));
  return means;
}

bool ShouldLog(int64_t iteration, int64_t log_interval, bool is_first_of_this_program) {
  return iteration % log_interval == 0 || is_first_of_this_program;
}

std::string FormatIterationLine(const IterationLog& log, absl::TimeZone zone) {
  std::string line =
      absl::StrCat(" [", absl::FormatTime("%Y-%m-%d %H:%M:%E6S", log.time, zone), "]");
  absl::StrAppendFormat(&line, " iteration %8d/%8d |", log.iteration, log.train_iters);
  absl::StrAppendFormat(&line, " consumed samples: %12d |", log.consumed_samples);
  absl::StrAppendFormat(&line, " elapsed time per iteration (ms): %.1f |", log.elapsed_ms);
  if (log.throughput_tflops)
    absl::StrAppendFormat(&line, " throughput per GPU (TFLOP/s/GPU): %.1f |",
                          *log.throughput_tflops);
  absl::StrAppendFormat(&line, " learning rate: %.6E |", log.learning_rate);
  absl::StrAppendFormat(&line, " global batch size: %5d |", log.global_batch_size);
  for (const NamedLoss& loss : log.losses) {
    if (loss.value >= 0) absl::StrAppendFormat(&line, " %s: %.6E |", loss.name, loss.value);
  }
  absl::StrAppendFormat(&line, " loss scale: %.1f |", log.loss_scale);
  if (log.grad_norm) absl::StrAppendFormat(&line, " grad norm: %.3f |", *log.grad_norm);
  if (log.num_zeros) absl::StrAppendFormat(&line, " num zeros: %d |", *log.num_zeros);
  if (log.params_norm) absl::StrAppendFormat(&line, " params norm: %.3f |", *log.params_norm);
  absl::StrAppendFormat(&line, " number of skipped iterations: %3d |", log.skipped_iterations);
  absl::StrAppendFormat(&line, " number of nan iterations: %3d |", log.nan_iterations);
  return line;
}

std::string FormatSpeed(const SpeedLog& log) {
  std::string text =
      absl::StrFormat(" tokens/s: %.0f | model TFLOP/s: %.*f |", log.tokens_per_second,
                      log.model_tflops < 10 ? 3 : 1, log.model_tflops);
  if (log.mfu && log.full_mfu) {
    absl::StrAppendFormat(&text, " MFU: %.1f%% (%.1f%% with attention in full) |", *log.mfu * 100,
                          *log.full_mfu * 100);
  }
  absl::StrAppend(&text, " ETA: ", FormatTimeLeft(log.time_left));
  return text;
}

double Perplexity(double loss) { return std::exp(loss > 20 ? 20 : loss); }

std::string FormatValidationBlock(const std::string& when, const std::vector<NamedLoss>& losses,
                                  const std::vector<NamedLoss>& others) {
  std::string text = absl::StrCat(" validation loss at ", when, " | ");
  for (const NamedLoss& loss : losses) {
    absl::StrAppendFormat(&text, "%s value: %.6E | %s PPL: %.6E | ", loss.name, loss.value,
                          loss.name, Perplexity(loss.value));
  }
  for (const NamedLoss& other : others)
    absl::StrAppendFormat(&text, "%s value: %.6E | ", other.name, other.value);
  const std::string dashes(text.size() + 1, '-');
  return absl::StrCat(dashes, "\n", text, "\n", dashes);
}

std::string FormatTimeLeft(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "unknown";
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  const int64_t minutes = seconds / 60;
  const int64_t hours = minutes / 60;
  if (hours >= 24) return absl::StrFormat("%dd%02dh", hours / 24, hours % 24);
  if (hours > 0) return absl::StrFormat("%dh%02dm", hours, minutes % 60);
  if (minutes > 0) return absl::StrFormat("%dm%02ds", minutes, seconds % 60);
  return absl::StrFormat("%ds", seconds);
}

}  // namespace megatron
