#include "megatron/train/metrics/spike_detector.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace megatron {

// The sums are taken anew each time: a window is short, and running sums would drift.
std::optional<ZScore> ZScoreWindow::Add(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  std::optional<ZScore> result;
  if (!values_.empty() && 2 * values_.size() >= size_) {
    const double count = static_cast<double>(values_.size());
    ZScore score;
    score.value = value;
    for (double past : values_) score.mean += past / count;
    double variance = 0;
    for (double past : values_) variance += (past - score.mean) * (past - score.mean) / count;
    score.deviation = std::sqrt(variance);
    const double distance = value - score.mean;
    if (score.deviation > 0) {
      score.score = distance / score.deviation;
    } else if (distance != 0) {
      score.score = std::copysign(std::numeric_limits<double>::infinity(), distance);
    }
    result = score;
  }
  values_.push_back(value);
  if (values_.size() > size_) values_.pop_front();
  return result;
}

std::string DescribeSpike(int64_t iteration, const SpikeScores& scores) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const ZScore& score) {
    parts.push_back(absl::StrFormat("%s is %.4g, %.1f standard deviations above its mean of %.4g",
                                    what, score.value, score.score, score.mean));
  };
  if (scores.loss_spikes) add("the loss", *scores.loss);
  if (scores.grad_norm_spikes) add("the norm of the gradients", *scores.grad_norm);
  return absl::StrCat("iteration ", iteration, ": ", absl::StrJoin(parts, "; "));
}

SpikeScores SpikeDetector::Add(double loss, const std::optional<double>& grad_norm) {
  SpikeScores scores;
  if (options_.threshold <= 0) return scores;
  const auto spikes = [&](const std::optional<ZScore>& score) {
    return score.has_value() && score->score >= options_.threshold;
  };
  scores.loss = loss_.Add(loss);
  scores.loss_spikes = spikes(scores.loss);
  if (grad_norm.has_value()) scores.grad_norm = grad_norm_.Add(*grad_norm);
  scores.grad_norm_spikes = spikes(scores.grad_norm);
  return scores;
}

}  // namespace megatron
