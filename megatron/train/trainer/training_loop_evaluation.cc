// How a training loop evaluates.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {

bool TrainingLoop::EvaluationIsDue() const {
  const int64_t interval = options().loop.eval_interval;
  return interval > 0 && trainer_->progress().iteration % interval == 0;
}

std::optional<ExitCode> TrainingLoop::RepeatEvaluation() {
  const bool is_lost = rank_.evaluated_iteration && first_iteration_ > 0 &&
                       *rank_.evaluated_iteration != first_iteration_ &&
                       options().loop.eval_interval > 0 && (EvaluationIsDue() || Done());
  return is_lost ? Evaluate() : std::nullopt;
}

absl::StatusOr<EvaluationMetrics> TrainingLoop::EvaluateOn(const SampleSource& source,
                                                           int64_t first, int64_t iterations,
                                                           bool on_test_set) {
  int64_t& position = trainer_->progress().consumed_valid_samples;
  const int64_t kept = std::exchange(position, first);
  absl::StatusOr<Measured> evaluated = trainer_->Evaluate(source, iterations);
  position = kept;
  MEGATRON_ASSIGN_OR_RETURN(Measured measured, std::move(evaluated));
  // There is no mean where nothing counted, as where no token was masked, and 0 would look like
  // one.
  for (const char* name : measured.undefined_means) {
    for (auto& [measure, value] : measured.values) {
      if (absl::string_view(measure.name) == name) value = std::nan("");
    }
    rank_.console->PrintLine(absl::StrCat("the evaluation has no ", name,
                                          ": nothing in its samples counts for it; a larger "
                                          "train.eval_iters may help"));
  }
  return ToEvaluationMetrics(measured, trainer_->progress(), on_test_set);
}

void TrainingLoop::Report(EvaluationMetrics metrics) {
  metrics.time = absl::Now();
  totals_.Add(metrics);
  metrics_.WriteEvaluation(metrics);
}

bool TrainingLoop::TasksAreDue() const {
  const int64_t interval = options().loop.eval_tasks_interval;
  return !run_.tasks.empty() && (Done() || trainer_->progress().iteration % interval == 0);
}

absl::Status TrainingLoop::EvaluateTasks(std::vector<NamedValue>* metrics) {
  for (const auto& evaluated : run_.tasks) {
    const PreparedTask& task = evaluated->task;
    std::vector<RequestScore> scores(task.requests().size());
    MEGATRON_RETURN_IF_ERROR(trainer_->ScoreTokens(
        evaluated->samples,
        [&](int64_t first, absl::Span<const float> losses, absl::Span<const float> hits) {
          evaluated->samples.AddScores(first, losses, hits, &scores);
        }));
    for (const TaskMetric& metric : task.Metrics(scores)) {
      metrics->push_back({absl::StrCat(task.info().name, "/", metric.name), metric.value,
                          /*is_loss=*/false});
    }
  }
  return absl::OkStatus();
}

std::optional<ExitCode> TrainingLoop::Evaluate() {
  const bool all = options().data.full_validation;
  const int64_t batch = options().trainer.batch_size.global_batch_size;
  int64_t& position = trainer_->progress().consumed_valid_samples;
  std::vector<std::pair<std::string, EvaluationMetrics>> sets;
  for (const ValidationSet& set : run_.data.valid) {
    absl::StatusOr<EvaluationMetrics> evaluated =
        all ? EvaluateOn(*set.samples, 0, set.samples->size() / batch, /*on_test_set=*/false)
            : EvaluateOn(*set.samples, position, options().loop.eval_iters, /*on_test_set=*/false);
    if (!evaluated.ok()) return FailStep(evaluated.status());
    sets.emplace_back(set.name, *std::move(evaluated));
  }
  if (!all) position += options().loop.eval_iters * batch;
  EvaluationMetrics joined = JoinEvaluations(sets);
  if (TasksAreDue()) {
    const absl::Status evaluated = EvaluateTasks(&joined.tasks);
    if (!evaluated.ok()) return FailStep(evaluated);
    Tell(RunEventKind::kEvaluated, joined.iteration,
         absl::StrCat("tasks: ", absl::StrJoin(joined.tasks, ", ",
                                               [](std::string* text, const NamedValue& metric) {
                                                 absl::StrAppendFormat(text, "%s %.4g", metric.name,
                                                                       metric.value);
                                               })));
  }
  Report(std::move(joined));
  last_evaluated_iteration_ = trainer_->progress().iteration;
  trainer_->NoteEvaluation();
  return std::nullopt;
}

ExitCode TrainingLoop::Test() {
  absl::StatusOr<EvaluationMetrics> evaluated =
      EvaluateOn(*run_.data.test, 0, options().loop.eval_iters, /*on_test_set=*/true);
  if (!evaluated.ok()) return FailStep(evaluated.status());
  Report(*std::move(evaluated));
  metrics_.Sync();
  return kExitDone;
}

}  // namespace megatron
