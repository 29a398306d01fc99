#include "megatron/train/metrics/log_line.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {

namespace {

// Returns Megatron's part of the line.
std::string FormatIteration(const StepMetrics& step, absl::TimeZone zone) {
  const IntervalMetrics& interval = *step.interval;
  std::string line =
      absl::StrCat(" [", absl::FormatTime("%Y-%m-%d %H:%M:%E6S", step.time, zone), "]");
  absl::StrAppendFormat(&line, " iteration %8d/%8d |", step.iteration, step.train_iters);
  absl::StrAppendFormat(&line, " consumed samples: %12d |", step.consumed_samples);
  if (step.consumed_tokens)
    absl::StrAppendFormat(&line, " consumed tokens: %12d |", *step.consumed_tokens);
  absl::StrAppendFormat(&line, " elapsed time per iteration (ms): %.1f |",
                        interval.speed.elapsed_ms);
  if (interval.speed.tflops_per_rank)
    absl::StrAppendFormat(&line, " throughput per GPU (TFLOP/s/GPU): %.1f |",
                          *interval.speed.tflops_per_rank);
  absl::StrAppendFormat(&line, " learning rate: %.6E |", step.learning_rate);
  if (step.decoupled_learning_rate)
    absl::StrAppendFormat(&line, " decoupled learning rate: %.6E |", *step.decoupled_learning_rate);
  absl::StrAppendFormat(&line, " global batch size: %5d |", step.global_batch_size);
  if (step.seq_length) absl::StrAppendFormat(&line, " curriculum seqlen: %5d |", *step.seq_length);
  if (step.kept_tokens)
    absl::StrAppendFormat(&line, " random ltd length: %5d |", *step.kept_tokens);
  for (const NamedValue& loss : interval.losses) {
    if (loss.value >= 0) absl::StrAppendFormat(&line, " %s: %.6E |", loss.name, loss.value);
  }
  // All iterations were skipped, and the loss may say why: "NAN".
  if (interval.losses.empty()) absl::StrAppendFormat(&line, " %s: %.6E |", kLmLossName, step.loss);
  absl::StrAppendFormat(&line, " loss scale: %.1f |", step.loss_scale);
  if (step.grad_norm) absl::StrAppendFormat(&line, " grad norm: %.3f |", *step.grad_norm);
  if (step.num_zeros) absl::StrAppendFormat(&line, " num zeros: %d |", *step.num_zeros);
  if (step.sent_gradients)
    absl::StrAppendFormat(&line, " sent gradients: %.4f |", *step.sent_gradients);
  if (step.params_norm) absl::StrAppendFormat(&line, " params norm: %.3f |", *step.params_norm);
  absl::StrAppendFormat(&line, " number of skipped iterations: %3d |", interval.skipped_iterations);
  absl::StrAppendFormat(&line, " number of nan iterations: %3d |", interval.nan_iterations);
  return line;
}

std::string FormatSpeed(const Speed& speed) {
  std::string text =
      absl::StrFormat(" tokens/s: %.0f | model TFLOP/s: %.*f |", speed.tokens_per_second,
                      speed.model_tflops < 10 ? 3 : 1, speed.model_tflops);
  if (speed.mfu && speed.full_mfu) {
    absl::StrAppendFormat(&text, " MFU: %.1f%% (%.1f%% with attention in full) |", *speed.mfu * 100,
                          *speed.full_mfu * 100);
  }
  absl::StrAppend(&text, " ETA: ", FormatTimeLeft(speed.time_left));
  return text;
}

// A line with more losses could not be read.
std::string FormatSources(const std::vector<NamedValue>& sources) {
  constexpr size_t kMostLosses = 8;
  std::string text;
  if (sources.size() > kMostLosses) return text;
  for (const NamedValue& source : sources)
    absl::StrAppendFormat(&text, " %s: %.6E |", SourceLossName(source.name), source.value);
  return text;
}

std::string FormatLossAndPerplexity(absl::string_view name, double value) {
  return absl::StrFormat("%s value: %.6E | %s PPL: %.6E | ", name, value, name, Perplexity(value));
}

}  // namespace

std::string FormatLogLine(const StepMetrics& step, absl::TimeZone zone) {
  return FormatIteration(step, zone) + FormatSources(step.sources) +
         FormatSpeed(step.interval->speed);
}

std::string FormatValidationBlock(const EvaluationMetrics& evaluation) {
  std::string text = absl::StrCat(" validation loss at iteration ", evaluation.iteration,
                                  evaluation.on_test_set ? " on test set" : "", " | ");
  absl::StrAppend(&text, FormatLossAndPerplexity(kLmLossName, evaluation.loss));
  for (const NamedValue& other : evaluation.others) {
    if (other.is_loss) absl::StrAppend(&text, FormatLossAndPerplexity(other.name, other.value));
  }
  for (const NamedValue& other : evaluation.others) {
    if (!other.is_loss) absl::StrAppendFormat(&text, "%s value: %.6E | ", other.name, other.value);
  }
  for (const NamedValue& set : evaluation.sets) {
    absl::StrAppend(&text,
                    FormatLossAndPerplexity(absl::StrCat(kLmLossName, " ", set.name), set.value));
  }
  for (const NamedValue& task : evaluation.tasks)
    absl::StrAppendFormat(&text, "%s: %.6E | ", task.name, task.value);
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
