#include "megatron/train/trainer/training_loop.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/failure/stop_signals.h"

namespace megatron {
namespace {

// A dynamic loss scale that starts at 2^32 needs about twenty steps to come down; more failures in
// a row than this mean that the weights themselves are lost.
constexpr int64_t kMaxConsecutiveFailures = 50;

SaveOptions ToSaveOptions(const CheckpointOptions& options) {
  SaveOptions save;
  save.directory = options.save;
  save.keep = static_cast<int>(options.keep_last);
  return save;
}

// Those that are losses, or those that are not.
std::vector<NamedLoss> ValuesOf(const Measured& measured, bool losses) {
  std::vector<NamedLoss> values;
  for (const auto& [measure, value] : measured.values) {
    if (measure.is_loss == losses) values.push_back({measure.name, value});
  }
  return values;
}

void TakeMeasured(const Measured& measured, double* lm_loss, OtherMetrics* others) {
  for (const auto& [measure, value] : measured.values) {
    if (absl::string_view(measure.name) == "lm loss") {
      *lm_loss = value;
    } else {
      others->emplace_back(measure.name, value);
    }
  }
}

EvaluationMetrics ToEvaluationMetrics(int64_t iteration, const Measured& measured) {
  EvaluationMetrics metrics;
  metrics.iteration = iteration;
  TakeMeasured(measured, &metrics.loss, &metrics.others);
  return metrics;
}

ExitCode CodeOf(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) return kExitHang;
  return status.code() == absl::StatusCode::kDataLoss ||
                 status.code() == absl::StatusCode::kInvalidArgument
             ? kExitData
             : kExitPeerLost;
}

}  // namespace

TrainingLoop::TrainingLoop(const Context& context, FileSystem& fs, Trainer* trainer)
    : context_(context),
      fs_(fs),
      trainer_(trainer),
      consensus_(trainer->groups().world),
      saving_consensus_(context.saving),
      profile_(context.profile, trainer->stream(), fs),
      first_iteration_(trainer->progress().iteration) {
  const CheckpointOptions& checkpoint = options().checkpoint;
  if (!checkpoint.save.empty()) {
    SaveOptions save = ToSaveOptions(checkpoint);
    save.rank = context.saving.rank();
    save.world_size = context.saving.size();
    save.agree = [this](absl::Status status) { return saving_consensus_.FirstError(status); };
    writer_ = std::make_unique<AsyncCheckpointWriter>(fs, save);
  }
  // What was loaded from where we save is saved already.
  if (first_iteration_ > 0 && checkpoint.load == checkpoint.save)
    last_saved_iteration_ = first_iteration_;
}

void TrainingLoop::Print(const std::string& line) {
  if (!context_.is_reporting_rank) return;
  const RankProgress::ExternalWait printing(context_.progress);
  progress_line_.Clear();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

ExitCode TrainingLoop::Fail(ExitCode code, const std::string& message) {
  progress_line_.Clear();
  const ProcessGroup& world = trainer_->groups().world;
  return context_.failure->Set(
      code, world.size() == 1 ? message : absl::StrCat("rank ", world.rank(), ": ", message));
}

void TrainingLoop::Warn(const std::string& message) {
  const RankProgress::ExternalWait printing(context_.progress);
  progress_line_.Clear();
  LOG_IF(ERROR, context_.is_reporting_rank) << message;
}

ExitCode TrainingLoop::Run() {
  const ExitCode code = Train();
  // After a failure of this rank or another its device may never have done what it was given.
  if (trainer_->groups().world.status().ok() && !context_.failure->Get().has_value())
    Tell(profile_.Leave(trainer_->progress().iteration));
  return code;
}

// Each rank that is profiled has something to tell.
void TrainingLoop::Tell(const absl::StatusOr<std::string>& profiled) {
  const RankProgress::ExternalWait printing(context_.progress);
  if (!profiled.ok()) {
    LOG(ERROR) << "no profile is written, training goes on: " << profiled.status().message();
  } else if (!profiled->empty()) {
    progress_line_.Clear();
    std::printf("%s", profiled->c_str());
    std::fflush(stdout);
  }
}

ExitCode TrainingLoop::Train() {
  if (context_.is_reporting_rank && !options().loop.metrics_file.empty()) {
    absl::StatusOr<MetricsWriter> metrics =
        MetricsWriter::Open(fs_, options().loop.metrics_file, first_iteration_);
    if (!metrics.ok()) return Fail(kExitIo, std::string(metrics.status().message()));
    metrics_ = *std::move(metrics);
  }
  if (Done()) {
    Print(absl::StrCat("already at iteration ", first_iteration_, " of ",
                       options().loop.train_iters, ": nothing to do"));
  }
  while (!Done()) {
    Tell(profile_.Reach(trainer_->progress().iteration));
    if (const std::optional<ExitCode> code = Iterate()) return *code;
  }
  const int64_t iteration = trainer_->progress().iteration;
  if (options().loop.eval_interval > 0 && iteration > first_iteration_ &&
      last_evaluated_iteration_ != iteration && !consensus_.Any(StopSignal() != 0)) {
    if (const std::optional<ExitCode> code = Evaluate()) return *code;
  }
  const ExitCode code = SaveAndLeave(kExitDone);
  const bool test = context_.data->test != nullptr && iteration > first_iteration_;
  return test && code == kExitDone && !consensus_.Any(StopSignal() != 0) ? Test() : code;
}

std::optional<ExitCode> TrainingLoop::Iterate() {
  const absl::Time start = absl::Now();
  const bool stop = StopSignal() != 0;
  const absl::StatusOr<StepReport> report = trainer_->Step(*context_.data->train, stop, [this] {
    if (writer_ != nullptr) writer_->WaitUntilRead();
  });
  if (!report.ok()) return Fail(CodeOf(report.status()), std::string(report.status().message()));
  if (trainer_->progress().iteration == first_iteration_ + 1) {
    Print(absl::StrFormat("first step done %.2f s after the start",
                          absl::ToDoubleSeconds(absl::Now() - context_.program_start)));
  }
  if (const std::optional<ExitCode> code = CheckNumerics(*report)) return code;
  Record(*report, absl::Now() - start);
  bool leaving = consensus_.Any(report->update.stop_requested || StopSignal() != 0);
  if (!leaving && EvaluationIsDue()) {
    if (const std::optional<ExitCode> code = Evaluate()) return code;
    leaving = consensus_.Any(StopSignal() != 0);
  }
  return SaveOrLeave(leaving);
}

std::optional<ExitCode> TrainingLoop::CheckNumerics(const StepReport& report) {
  if (report.update.finite) {
    consecutive_failures_ = 0;
    return std::nullopt;
  }
  TrainingProgress& progress = trainer_->progress();
  ++(options().precision.dynamic_loss_scale ? progress.skipped_iterations
                                            : progress.nan_iterations);
  if (++consecutive_failures_ < kMaxConsecutiveFailures) return std::nullopt;
  return Fail(kExitNumeric,
              absl::StrCat("gradients were not finite in ", consecutive_failures_,
                           " iterations in a row, up to iteration ", progress.iteration, " (loss ",
                           report.loss, ", loss scale ", report.loss_scale,
                           "): stopping without a checkpoint. A lower learning rate, a longer "
                           "warm-up or bf16 may help."));
}

void TrainingLoop::Record(const StepReport& report, absl::Duration elapsed) {
  const TrainingProgress& progress = trainer_->progress();
  const double tokens = static_cast<double>(report.global_batch_size * options().data.seq_length);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  interval_.Add(ValuesOf(report, /*losses=*/true), /*skipped=*/!report.update.finite);
  interval_elapsed_ += elapsed;
  if (metrics_.has_value()) {
    StepMetrics metrics;
    metrics.iteration = progress.iteration;
    metrics.consumed_samples = progress.consumed_train_samples;
    TakeMeasured(report, &metrics.loss, &metrics.others);
    metrics.learning_rate = report.learning_rate;
    if (report.update.finite) metrics.grad_norm = report.update.grad_norm;
    if (options().trainer.log_params_norm) metrics.params_norm = report.params_norm;
    if (options().trainer.log_num_zeros_in_grad) metrics.num_zeros = report.num_zeros;
    metrics.loss_scale = report.loss_scale;
    metrics.global_batch_size = report.global_batch_size;
    metrics.skipped = !report.update.finite;
    metrics.elapsed_ms = seconds * 1e3;
    metrics.tokens_per_second = tokens / seconds;
    metrics.model_tflops = tokens * context_.flops_per_token / seconds * 1e-12;
    if (context_.peak_flops)
      metrics.mfu = tokens * context_.flops_per_token / seconds / *context_.peak_flops;
    ReportMetricsError(metrics_->Write(metrics));
  }
  Progress shown;
  shown.iteration = progress.iteration;
  shown.train_iters = options().loop.train_iters;
  shown.loss = report.loss;
  shown.tokens_per_second = tokens / seconds;
  shown.time_left = elapsed * (shown.train_iters - shown.iteration);
  if (context_.is_reporting_rank) {
    const RankProgress::ExternalWait printing(context_.progress);
    progress_line_.Show(shown);
  }
  if (ShouldLog(progress.iteration, options().loop.log_interval,
                progress.iteration == first_iteration_ + 1)) {
    PrintLogLine(report);
    WritePipelineTimeline();
  }
}

void TrainingLoop::WritePipelineTimeline() {
  const std::string& path = options().loop.pipeline_timeline_file;
  if (path.empty() || !context_.is_reporting_rank) return;
  ReportMetricsError(WriteFileAtomically(fs_, path, TimelineText(trainer_->measured_pipeline())));
}

void TrainingLoop::PrintLogLine(const StepReport& report) {
  const TrainingProgress& progress = trainer_->progress();
  const double iterations = static_cast<double>(interval_.iterations());
  const double seconds = absl::ToDoubleSeconds(interval_elapsed_) / iterations;
  const double tokens = static_cast<double>(report.global_batch_size * options().data.seq_length);
  SpeedLog speed;
  speed.tokens_per_second = tokens / seconds;
  speed.model_tflops = tokens * context_.flops_per_token / seconds * 1e-12;
  if (context_.peak_flops) {
    speed.mfu = tokens * context_.flops_per_token / seconds / *context_.peak_flops;
    speed.full_mfu = tokens * context_.full_flops_per_token / seconds / *context_.peak_flops;
  }
  speed.time_left =
      absl::Seconds(seconds * static_cast<double>(options().loop.train_iters - progress.iteration));

  IterationLog log;
  log.time = absl::Now();
  log.iteration = progress.iteration;
  log.train_iters = options().loop.train_iters;
  log.consumed_samples = progress.consumed_train_samples;
  log.elapsed_ms = seconds * 1e3;
  if (options().loop.log_throughput)
    log.throughput_tflops = speed.model_tflops / options().num_ranks();
  log.learning_rate = report.learning_rate;
  log.global_batch_size = report.global_batch_size;
  log.losses = interval_.Means();
  log.loss_scale = report.loss_scale;
  if (report.update.finite) log.grad_norm = report.update.grad_norm;
  if (options().trainer.log_num_zeros_in_grad) log.num_zeros = report.num_zeros;
  if (options().trainer.log_params_norm) log.params_norm = report.params_norm;
  log.skipped_iterations = interval_.skipped();
  log.nan_iterations = interval_.nans();
  Print(absl::StrCat(FormatIterationLine(log), FormatSpeed(speed)));
  interval_.Clear();
  interval_elapsed_ = absl::ZeroDuration();
}

void TrainingLoop::ReportMetricsError(const absl::Status& status) {
  if (status.ok() || metrics_failed_) return;
  metrics_failed_ = true;
  progress_line_.Clear();
  LOG(ERROR) << "metrics are missing from here on where they cannot be written: "
             << status.message();
}

bool TrainingLoop::EvaluationIsDue() const {
  const int64_t interval = options().loop.eval_interval;
  return interval > 0 && trainer_->progress().iteration % interval == 0;
}

// Where nothing counted, as where no token was masked, there is no mean, and 0 would look like one.
absl::StatusOr<Measured> TrainingLoop::EvaluateOn(const SampleSource& source) {
  MEGATRON_ASSIGN_OR_RETURN(Measured measured,
                            trainer_->Evaluate(source, options().loop.eval_iters));
  for (const char* name : measured.of_nothing) {
    for (auto& [measure, value] : measured.values) {
      if (absl::string_view(measure.name) == name) value = std::nan("");
    }
    Print(absl::StrCat("of what is evaluated nothing counts for ", name,
                       "; with more train.eval_iters something may"));
  }
  return measured;
}

std::optional<ExitCode> TrainingLoop::Evaluate() {
  const int64_t iteration = trainer_->progress().iteration;
  const absl::StatusOr<Measured> measured = EvaluateOn(*context_.data->valid);
  if (!measured.ok())
    return Fail(CodeOf(measured.status()), std::string(measured.status().message()));
  last_evaluated_iteration_ = iteration;
  Print(FormatValidationBlock(absl::StrCat("iteration ", iteration),
                              ValuesOf(*measured, /*losses=*/true),
                              ValuesOf(*measured, /*losses=*/false)));
  if (metrics_.has_value()) {
    ReportMetricsError(metrics_->Write(ToEvaluationMetrics(iteration, *measured)));
  }
  return std::nullopt;
}

ExitCode TrainingLoop::Test() {
  TrainingProgress& progress = trainer_->progress();
  const int64_t consumed = std::exchange(progress.consumed_valid_samples, 0);
  const absl::StatusOr<Measured> measured = EvaluateOn(*context_.data->test);
  progress.consumed_valid_samples = consumed;
  if (!measured.ok())
    return Fail(CodeOf(measured.status()), std::string(measured.status().message()));
  Print(FormatValidationBlock(absl::StrCat("iteration ", progress.iteration, " on test set"),
                              ValuesOf(*measured, /*losses=*/true),
                              ValuesOf(*measured, /*losses=*/false)));
  if (metrics_.has_value()) {
    EvaluationMetrics metrics = ToEvaluationMetrics(progress.iteration, *measured);
    metrics.on_test_set = true;
    ReportMetricsError(metrics_->Write(metrics));
    ReportMetricsError(metrics_->Sync());
  }
  return kExitDone;
}

std::optional<ExitCode> TrainingLoop::SaveOrLeave(bool stop_requested) {
  const LoopOptions& loop = options().loop;
  const int64_t iteration = trainer_->progress().iteration;
  if (Done()) return std::nullopt;  // what remains is done behind the loop
  if (stop_requested) return SaveAndLeave(kExitSavedOnSignal);
  if (loop.exit_duration_minutes > 0 && consensus_.Any(absl::Now() - context_.program_start >=
                                                       absl::Minutes(loop.exit_duration_minutes))) {
    return SaveAndLeave(kExitTimeLimit);
  }
  if (loop.exit_interval > 0 && iteration % loop.exit_interval == 0) return SaveAndLeave(kExitDone);
  const CheckpointOptions& checkpoint = options().checkpoint;
  if (writer_ == nullptr || checkpoint.save_interval == 0 ||
      iteration % checkpoint.save_interval != 0)
    return std::nullopt;
  StartSave();
  const absl::Status status = checkpoint.async_save ? absl::OkStatus() : FinishSave();
  // The last good checkpoint is still there, and the disk may have room again at the next interval.
  if (!status.ok()) {
    Warn(absl::StrCat("no checkpoint at iteration ", iteration,
                      ", training goes on: ", status.message()));
  }
  return std::nullopt;
}

void TrainingLoop::StartSave() {
  const TraceSpan span(trainer_->stream(), "start checkpoint");
  context_.progress->Enter(Phase::kSave);
  const int64_t before = last_saved_iteration_;
  const absl::Status status = FinishSave();
  if (!status.ok())
    Warn(absl::StrCat("no checkpoint at iteration ", before, ": ", status.message()));
  if (metrics_.has_value()) ReportMetricsError(metrics_->Sync());
  writer_->Start(MakeCheckpointState(*trainer_, context_.run));
  last_saved_iteration_ = trainer_->progress().iteration;
}

absl::Status TrainingLoop::FinishSave() {
  if (!writer_->in_progress()) return absl::OkStatus();
  const TraceSpan span(trainer_->stream(), "finish checkpoint");
  context_.progress->Enter(Phase::kSave);
  const absl::Status status = writer_->Wait();
  context_.progress->Enter(Phase::kUpdate);
  if (status.ok()) {
    Print(absl::StrCat("saved checkpoint of iteration ", last_saved_iteration_, " to ",
                       options().checkpoint.save));
  } else {
    last_saved_iteration_ = -1;
  }
  return status;
}

ExitCode TrainingLoop::SaveAndLeave(ExitCode code) {
  progress_line_.Clear();
  if (writer_ == nullptr) {
    LOG_IF(WARNING, context_.is_reporting_rank && code != kExitDone)
        << "leaving without a checkpoint: checkpoint.save is not set";
    return code;
  }
  if (last_saved_iteration_ != trainer_->progress().iteration) StartSave();
  const absl::Status status = FinishSave();
  if (status.ok()) return code;
  return Fail(kExitIo, absl::StrCat("no checkpoint at iteration ", trainer_->progress().iteration,
                                    ": ", status.message()));
}

}  // namespace megatron
