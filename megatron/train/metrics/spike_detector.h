// SpikeDetector: how far the loss and the norm of the gradients of a step lie from those of the
// steps before it, in standard deviations.
//
//   SpikeDetector detector(options);
//   const SpikeScores scores = detector.Add(loss, grad_norm);   // after each step
//   if (scores.is_spike()) ...
//
// The scores are a function of what was added, so that ranks that add the same values, as all ranks
// of a run do, see the same spikes at the same steps.
#ifndef MEGATRON_TRAIN_METRICS_SPIKE_DETECTOR_H_
#define MEGATRON_TRAIN_METRICS_SPIKE_DETECTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace megatron {

struct SpikeOptions {
  double threshold = 0;  // the score from which on a value is a spike; 0: nothing is detected
  int64_t window = 128;  // number of steps that a step is compared with
};

// A value beside those before it.
struct ZScore {
  double value = 0, mean = 0, deviation = 0;
  // (value - mean) / deviation; where all values before were equal, 0 or infinite.
  double score = 0;
};

// The last values of a series.
class ZScoreWindow {
 public:
  explicit ZScoreWindow(int64_t size) : size_(static_cast<size_t>(size)) {}

  // Returns the score of `value` among the values added before, if there are at least size / 2, and
  // adds it. A value that is not finite has no score and is not added.
  std::optional<ZScore> Add(double value);

 private:
  const size_t size_;
  std::deque<double> values_;
};

struct SpikeScores {
  std::optional<ZScore> loss, grad_norm;
  bool loss_spikes = false, grad_norm_spikes = false;

  bool is_spike() const { return loss_spikes || grad_norm_spikes; }
};

// Returns a line about a spike: "iteration 512: the loss is 9.31, 8.2 standard deviations above its
// mean of 3.1".
std::string DescribeSpike(int64_t iteration, const SpikeScores& scores);

class SpikeDetector {
 public:
  explicit SpikeDetector(const SpikeOptions& options)
      : options_(options), loss_(options.window), grad_norm_(options.window) {}

  // Adds a step. The norm is unset where the step was skipped. Only values above the mean are
  // spikes. Without a threshold there are no scores.
  SpikeScores Add(double loss, const std::optional<double>& grad_norm);

 private:
  const SpikeOptions options_;
  ZScoreWindow loss_, grad_norm_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_SPIKE_DETECTOR_H_
