#include "megatron/train/metrics/step_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

void TakeMeasured(const Measured& measured, double* lm_loss, std::vector<NamedValue>* others) {
  for (const auto& [measure, value] : measured.values) {
    if (measure.kind == MeasureKind::kLmLoss) {
      *lm_loss = value;
    } else {
      others->push_back({measure.name, value, measure.is_loss});
    }
  }
}

std::vector<NamedValue> MeansOf(const std::map<std::string, SourceLoss>& sources) {
  std::vector<NamedValue> means;
  for (const auto& [name, loss] : sources)
    means.push_back({name, loss.sum / loss.weight, /*is_loss=*/true});
  return means;
}

std::vector<NamedValue> LossesOf(const StepMetrics& step) {
  std::vector<NamedValue> losses = {{kLmLossName, step.loss, /*is_loss=*/true}};
  for (const NamedValue& other : step.others) {
    if (other.is_loss) losses.push_back(other);
  }
  return losses;
}

}  // namespace

// The first iteration of a program is slower than those that follow. Three show how fast a run will
// be.
bool StepMeter::IsLogged(int64_t iteration, bool requested) const {
  constexpr int64_t kFirstIterations = 3;
  return requested || iteration % options_.loop.log_interval == 0 ||
         iteration <= last_iteration_ + kFirstIterations || iteration == options_.loop.train_iters;
}

StepMeter::Work StepMeter::WorkOf(const StepReport& report) const {
  const int64_t whole = options_.data.seq_length;
  const int64_t length = options_.trainer.curriculum.enabled() ? report.seq_length : whole;
  // The FLOPs of so many tokens of a sample, from those of a token of a whole one.
  const auto flops_of = [&](int64_t tokens, double per_token, double growth) {
    return static_cast<double>(tokens) * (per_token - static_cast<double>(whole - tokens) * growth);
  };
  const auto flops = [&](double per_token, double growth, double dropping_per_token) {
    double sum = flops_of(length, per_token, growth);
    if (report.kept_tokens > 0) {
      const double dropping_growth = growth * basis_.dropping_share;
      sum += flops_of(report.kept_tokens, dropping_per_token, dropping_growth) -
             flops_of(length, dropping_per_token, dropping_growth);
    }
    return static_cast<double>(report.global_batch_size) * sum;
  };
  return {static_cast<double>(report.global_batch_size * length),
          flops(basis_.flops_per_token, basis_.flops_per_token_and_length,
                basis_.dropping_flops_per_token),
          flops(basis_.full_flops_per_token, basis_.full_flops_per_token_and_length,
                basis_.dropping_full_flops_per_token)};
}

Speed StepMeter::SpeedOf(double seconds, const Work& work, int64_t iteration) const {
  Speed speed;
  speed.elapsed_ms = seconds * 1e3;
  speed.tokens_per_second = work.tokens / seconds;
  speed.model_tflops = work.flops / seconds * 1e-12;
  if (basis_.peak_flops) {
    speed.mfu = work.flops / seconds / *basis_.peak_flops;
    speed.full_mfu = work.full_flops / seconds / *basis_.peak_flops;
  }
  if (options_.loop.log_throughput)
    speed.tflops_per_rank = speed.model_tflops / options_.num_ranks();
  speed.time_left =
      absl::Seconds(seconds * static_cast<double>(options_.loop.train_iters - iteration));
  return speed;
}

void StepMeter::AddToInterval(const StepMetrics& step, const Work& work, absl::Duration elapsed) {
  interval_.elapsed += elapsed;
  interval_.work.tokens += work.tokens;
  interval_.work.flops += work.flops;
  interval_.work.full_flops += work.full_flops;
  const std::vector<NamedValue> losses = LossesOf(step);
  if (step.skipped) {
    ++interval_.skipped;
    interval_.nans += std::any_of(losses.begin(), losses.end(), [](const NamedValue& loss) {
      return !std::isfinite(loss.value);
    });
    return;
  }
  ++interval_.advanced;
  for (const NamedValue& loss : losses) {
    const auto sum = std::find_if(interval_.sums.begin(), interval_.sums.end(),
                                  [&](const NamedValue& known) { return known.name == loss.name; });
    if (sum == interval_.sums.end()) {
      interval_.sums.push_back(loss);
    } else {
      sum->value += loss.value;
    }
  }
}

void StepMeter::AddSources(const StepReport& report) {
  for (const SourceLoss& loss : report.sources) {
    SourceLoss& sum = interval_.sources[options_.sources[loss.source]];
    sum.sum += loss.sum;
    sum.weight += loss.weight;
  }
}

IntervalMetrics StepMeter::FinishInterval(int64_t iteration) {
  const Interval finished = std::exchange(interval_, Interval());
  const double iterations = static_cast<double>(finished.advanced + finished.skipped);
  IntervalMetrics metrics;
  metrics.losses = finished.sums;
  for (NamedValue& mean : metrics.losses) mean.value /= static_cast<double>(finished.advanced);
  const Work mean = {finished.work.tokens / iterations, finished.work.flops / iterations,
                     finished.work.full_flops / iterations};
  metrics.speed = SpeedOf(absl::ToDoubleSeconds(finished.elapsed) / iterations, mean, iteration);
  metrics.iterations = finished.advanced + finished.skipped;
  metrics.skipped_iterations = finished.skipped;
  metrics.nan_iterations = finished.nans;
  return metrics;
}

StepMetrics StepMeter::Measure(const StepReport& report, const TrainingProgress& progress,
                               absl::Duration elapsed, absl::Time time) {
  const Work work = WorkOf(report);
  StepMetrics step;
  step.time = time;
  step.iteration = progress.iteration;
  step.train_iters = options_.loop.train_iters;
  step.consumed_samples = progress.consumed_train_samples;
  step.global_batch_size = report.global_batch_size;
  if (options_.trainer.random_ltd.enabled())
    step.kept_tokens = report.kept_tokens > 0 ? report.kept_tokens : report.seq_length;
  if (options_.trainer.curriculum.enabled()) {
    step.seq_length = report.seq_length;
    step.consumed_tokens = progress.consumed_train_tokens;
  }
  TakeMeasured(report, &step.loss, &step.others);
  step.total_loss = report.loss;
  step.learning_rate = report.learning_rate;
  step.decoupled_learning_rate = report.decoupled_learning_rate;
  step.loss_scale = report.loss_scale;
  if (report.update.finite) step.grad_norm = report.update.grad_norm;
  if (options_.trainer.log_params_norm) step.params_norm = report.params_norm;
  if (options_.trainer.log_num_zeros_in_grad) step.num_zeros = report.num_zeros;
  step.sent_gradients = report.sent_gradients;
  step.skipped = !report.update.finite;
  step.diagnostics = report.diagnostics;
  if (report.round) step.epsilon = report.round->epsilon;
  step.world_size = options_.num_ranks();
  step.speed = SpeedOf(absl::ToDoubleSeconds(elapsed), work, step.iteration);
  AddToInterval(step, work, elapsed);
  if (!step.skipped) AddSources(report);
  if (IsLogged(step.iteration, report.update.log_requested)) {
    step.sources = MeansOf(interval_.sources);
    step.interval = FinishInterval(step.iteration);
  }
  return step;
}

EvaluationMetrics ToEvaluationMetrics(const Measured& measured, const TrainingProgress& progress,
                                      bool on_test_set) {
  EvaluationMetrics evaluation;
  evaluation.iteration = progress.iteration;
  evaluation.consumed_samples = progress.consumed_train_samples;
  evaluation.on_test_set = on_test_set;
  TakeMeasured(measured, &evaluation.loss, &evaluation.others);
  return evaluation;
}

EvaluationMetrics JoinEvaluations(
    absl::Span<const std::pair<std::string, EvaluationMetrics>> sets) {
  EvaluationMetrics joined = sets.front().second;
  for (const auto& [name, evaluation] : sets.subspan(1)) {
    joined.loss += evaluation.loss;
    for (size_t i = 0; i < joined.others.size(); ++i)
      joined.others[i].value += evaluation.others[i].value;
  }
  const auto count = static_cast<double>(sets.size());
  joined.loss /= count;
  for (NamedValue& other : joined.others) other.value /= count;
  for (const auto& [name, evaluation] : sets) {
    if (name.empty()) continue;
    joined.sets.push_back({name, evaluation.loss, /*is_loss=*/true});
    for (const NamedValue& other : evaluation.others) {
      if (!other.is_loss)
        joined.tasks.push_back({absl::StrCat(name, "/", other.name), other.value});
    }
  }
  return joined;
}

}  // namespace megatron
