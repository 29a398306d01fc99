#include "megatron/train/trainer/training_loop.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "megatron/base/out_of_memory.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/metrics/outer_round.h"
#include "megatron/train/metrics/run_summary.h"
#include "megatron/train/trainer/run_identity.h"

namespace megatron {
namespace {

// A dynamic loss scale that starts at 2^32 needs about twenty steps to come down; more failures in
// a row than this mean that the weights themselves are lost.
constexpr int64_t kMaxConsecutiveFailures = 50;

SaveOptions ToSaveOptions(const CheckpointOptions& options) {
  SaveOptions save;
  save.directory = options.save;
  save.keep = static_cast<int>(options.keep_last);
  save.retain_interval = options.retain_interval;
  return save;
}

RankTimesMeter::Place PlaceOf(const Trainer& trainer) {
  const StagePlacement& placement = trainer.options().placement;
  return {placement.stage, placement.stages};
}

// Returns the number of samples that the run took before the phase in which it starts.
int64_t SamplesBeforePhase(const RunOptions& options, int64_t first_iteration) {
  const auto next = options.loop.phase_transitions.upper_bound(first_iteration);
  if (next == options.loop.phase_transitions.begin()) return 0;
  return *std::prev(next) * options.trainer.batch_size.global_batch_size;
}

}  // namespace

TrainingLoop::TrainingLoop(const TrainingRun& run, const Rank& rank, FileSystem& fs,
                           Trainer* trainer)
    : run_(run),
      rank_(rank),
      fs_(fs),
      trainer_(trainer),
      consensus_(trainer->groups().world),
      saving_consensus_(rank.saving),
      local_saver_(run.options.checkpoint, run.local, rank.local_saving, fs),
      profile_(rank.profile, trainer->stream(), fs),
      first_iteration_(trainer->progress().iteration),
      samples_(run.data.train.get(), SamplesBeforePhase(run.options, first_iteration_)),
      meter_(run.options, run.speed, first_iteration_),
      spikes_(run.options.loop.spikes),
      last_logged_(SteadyNow()),
      times_meter_(rank.trace, PlaceOf(*trainer)),
      sampler_(rank.trace),
      metrics_(/*writers=*/{}, rank.console) {
  if (run.prediction.part_size() > 0)
    comparer_.emplace(run.prediction, rank.trace, PlaceOf(*trainer));
  const CheckpointOptions& checkpoint = options().checkpoint;
  if (!checkpoint.save.empty()) {
    SaveOptions save = ToSaveOptions(checkpoint);
    save.rank = rank.saving.rank();
    save.world_size = rank.saving.size();
    save.agree = [this](absl::Status status) { return saving_consensus_.FirstError(status); };
    writer_ = std::make_unique<AsyncCheckpointWriter>(fs, save);
  }
  if (first_iteration_ > 0 && run.starts_from_saved) saved_iteration_ = first_iteration_;
  if (rank.evaluated_iteration) last_evaluated_iteration_ = *rank.evaluated_iteration;
  if (run.going_on && run.going_on->last_step &&
      run.going_on->last_step->iteration == first_iteration_)
    last_step_ = run.going_on->last_step;
}

// The trainer lives on, and samples_ does not.
TrainingLoop::~TrainingLoop() { trainer_->ReleaseSources(); }

ExitCode TrainingLoop::Fail(const absl::Status& error) {
  rank_.console->ClearProgress();
  const ProcessGroup& world = trainer_->groups().world;
  if (world.size() == 1) return rank_.failure->Set(error);
  return rank_.failure->Set(WithExitCode(
      absl::Status(error.code(), absl::StrCat("rank ", world.rank(), ": ", error.message())),
      ExitCodeOf(error)));
}

ExitCode TrainingLoop::FailStep(const absl::Status& error) {
  if (HasExitCode(error)) return Fail(error);
  const bool data = error.code() == absl::StatusCode::kDataLoss ||
                    error.code() == absl::StatusCode::kInvalidArgument;
  return Fail(WithExitCodeOfRank(error, data ? kExitData : kExitPeerLost));
}

ExitCode TrainingLoop::Run() {
  const ExitCode code = Train();
  // After a failure of this rank or another its device may never have done what it was given.
  if (!makes_room_ && trainer_->groups().world.status().ok() && rank_.failure->Get().ok()) {
    PrintProfile(profile_.Leave(trainer_->progress().iteration));
    WarnOfSkippedSteps();
    WarnOfOtherResults();
  }
  WriteSummary();
  return code;
}

void TrainingLoop::WriteSummary() {
  const ProcessGroup& world = trainer_->groups().world;
  if (makes_room_ || world.size() == 1 || !world.status().ok() || !rank_.failure->Get().ok())
    return;
  const auto calls = GatherCalls(CallsOf(rank_.trace->Times()), world);
  const auto steps = GatherStepTimes(sampler_.samples(), world);
  if (!world.status().ok() || !rank_.console->prints()) return;
  RunSummary summary;
  summary.communication = CommunicationRows(calls);
  rank_.console->Print(FormatCommunicationTable(summary.communication));
  summary.what_if = ReplaySteps(steps);
  if (summary.what_if) {
    std::vector<std::string> hosts;
    for (const RankTimes& rank : times_.ranks) hosts.emplace_back(rank.host.data());
    summary.savings = SavingsOf(*summary.what_if, hosts);
    rank_.console->Print(FormatWhatIf(*summary.what_if, summary.savings));
  }
  metrics_.WriteSummary(summary);
}

std::optional<WhatIf> TrainingLoop::ReplaySteps(
    const std::vector<std::vector<StepTimes>>& steps) const {
  const int ranks = trainer_->groups().world.size();
  if (steps.front().empty()) return std::nullopt;
  // A run whose ranks have met has sizes that multiply to their number.
  WhatIfInput input;
  input.dense = *RankGrid::Create(options().parallel, ranks);
  input.expert = *RankGrid::CreateExpert(options().parallel, ranks);
  input.plans = trainer_->PlansOfAllStages();
  input.steps = steps;
  return ComputeWhatIf(input);
}

// Each rank that is profiled prints for itself.
void TrainingLoop::PrintProfile(const absl::StatusOr<std::string>& profiled) {
  if (!profiled.ok()) {
    rank_.console->WarnOwn(absl::StrCat("rank ", trainer_->groups().world.rank(),
                                        ": the profile could not be written: ",
                                        profiled.status().message(), "; training continues"));
  } else if (!profiled->empty()) {
    rank_.console->PrintOwn(*profiled);
  }
}

RunStart TrainingLoop::MetricsStart() const {
  RunStart start;
  start.last_iteration = first_iteration_;
  start.consumed_samples = trainer_->progress().consumed_train_samples;
  start.run_id = RunId(run_.description.identity);
  start.config_text = run_.description.config_text;
  start.restart_reason = run_.restart_reason;
  if (last_step_) start.last_step = &*last_step_;
  start.unwritten = handed_on_;
  return start;
}

void TrainingLoop::Tell(RunEventKind kind, int64_t iteration, const std::string& message) {
  if (!rank_.console->prints()) return;
  RunEvent event;
  event.kind = kind;
  event.time = absl::Now();
  event.iteration = iteration;
  event.message = message;
  metrics_.WriteEvent(event);
  if (run_.on_event) run_.on_event(event);
}

ExitCode TrainingLoop::Train() {
  if (run_.going_on) handed_on_ = consensus_.OfAll(run_.going_on->unwritten_metrics);
  if (const absl::Status& status = trainer_->groups().world.status(); !status.ok())
    return FailStep(status);
  absl::StatusOr<MetricsWriters> metrics =
      OpenMetricsWriters(options().loop, MetricsStart(), fs_, rank_.console);
  if (!metrics.ok()) return Fail(WithExitCode(metrics.status(), kExitIo));
  metrics_ = *std::move(metrics);
  handed_on_.clear();
  if (run_.going_on) {
    const std::string how =
        absl::StrCat("training goes on after iteration ", first_iteration_, run_.going_on->how);
    rank_.console->PrintLine(how);
    Tell(RunEventKind::kRecovered, first_iteration_, how);
  } else {
    Tell(RunEventKind::kStart, first_iteration_,
         absl::StrCat("training starts after iteration ", first_iteration_, " of ",
                      options().loop.train_iters,
                      run_.restart_reason.empty() ? "" : ", again: ", run_.restart_reason));
  }
  if (Done()) {
    rank_.console->PrintLine(absl::StrCat("already at iteration ", first_iteration_, " of ",
                                          options().loop.train_iters,
                                          trainer_->budget_spent() ? ", and the privacy budget of "
                                                                     "the federated run is spent"
                                                                   : "",
                                          ": nothing to do"));
  }
  if (const std::optional<ExitCode> code = RepeatEvaluation()) return *code;
  while (!Done() && !makes_room_) {
    if (PassesOver()) continue;
    PrintProfile(profile_.Reach(trainer_->progress().iteration));
    if (const std::optional<ExitCode> code = Iterate()) return *code;
  }
  if (makes_room_) return MakeRoom();
  const int64_t iteration = trainer_->progress().iteration;
  if (options().loop.eval_interval > 0 && iteration > first_iteration_ &&
      last_evaluated_iteration_ != iteration && !consensus_.Any(StopSignal() != 0)) {
    if (const std::optional<ExitCode> code = Evaluate()) return *code;
  }
  const ExitCode code = SaveAndLeave(kExitDone);
  const bool test = run_.data.test != nullptr && (iteration > first_iteration_ || run_.going_on);
  return test && code == kExitDone && !consensus_.Any(StopSignal() != 0) ? Test() : code;
}

bool TrainingLoop::PassesOver() {
  const int64_t iteration = trainer_->progress().iteration;
  if (!options().loop.iterations_to_skip.contains(iteration)) return false;
  trainer_->PassOverIteration();
  rank_.console->PrintLine(absl::StrCat(
      "iteration ", iteration + 1, " is passed over: train.iterations_to_skip has ", iteration));
  return true;
}

// A profile records with the same trace.
bool TrainingLoop::MaySample() const {
  const ProfileOptions& profile = options().profile;
  const int64_t done = trainer_->progress().iteration;
  const bool profiled = profile.enabled && done >= profile.start && done < profile.end;
  return trainer_->groups().world.size() > 1 && !profiled;
}

void TrainingLoop::WaitUntilRead() {
  if (writer_ != nullptr) writer_->WaitUntilRead();
  local_saver_.WaitUntilRead();
}

// The first rank's clock decides for all.
StepRequests TrainingLoop::Requests() const {
  const absl::Duration most = options().loop.log_time;
  StepRequests requests;
  requests.stop = StopSignal() != 0;
  requests.log = trainer_->groups().world.rank() == 0 && most > absl::ZeroDuration() &&
                 SteadyNow() - last_logged_ >= most;
  return requests;
}

std::optional<ExitCode> TrainingLoop::Iterate() {
  const absl::Time start = SteadyNow();
  const bool sampled = MaySample();
  if (sampled) sampler_.Begin();
  if (trainer_->passes_change_states()) WaitUntilRead();
  const bool is_read = (writer_ == nullptr || writer_->HasRead()) && local_saver_.HasRead();
  if (is_read) trainer_->UpdateAhead();
  const absl::StatusOr<StepReport> report = trainer_->Step(samples_, [this] {
    WaitUntilRead();
    return Requests();
  });
  if (sampled) sampler_.End();
  if (!report.ok()) {
    if (const std::optional<StepReport>& made = trainer_->made_step()) {
      CountSkipped(*made);
      Remember(meter_.Measure(*made, trainer_->progress(), SteadyNow() - start, absl::Now()));
    }
    return FailStep(report.status());
  }
  if (trainer_->progress().iteration == first_iteration_ + 1) {
    const absl::Time begin = run_.going_on ? run_.going_on->since : run_.program_start;
    rank_.console->PrintLine(absl::StrFormat(
        "first step done %.2f s after %s", absl::ToDoubleSeconds(SteadyNow() - begin),
        run_.going_on ? "the ranks before had ended" : "the start"));
    // What the run needs has been there, and may be again: launchers start it once more. The signal
    // of an abort tells a process that has failed from others that only miss it.
    SetExitCodeForWantOfMemory(options().ranks.processes ? kAbortForWantOfMemory : kExitPeerLost);
  }
  CountSkipped(*report);
  DetectEmptySums(*report);
  if (report->round) {
    const std::string line = DescribeRound(*report->round);
    rank_.console->PrintLine(line);
    Tell(RunEventKind::kOuterRound, trainer_->progress().iteration, line);
  }
  TellRerun(report->rerun);
  const absl::Time end = SteadyNow();
  StepMetrics metrics = meter_.Measure(*report, trainer_->progress(), end - start, absl::Now());
  totals_.Add(metrics);
  DetectSpikes(&metrics);
  metrics.pipeline = &trainer_->measured_pipeline();
  if (metrics.interval) {
    last_logged_ = end;
    metrics.memory_bytes = rank_.profile.ledger->current_bytes();
    metrics.peak_memory_bytes = rank_.profile.ledger->peak_bytes();
    ReportTimes(&metrics);
  }
  ComparePrediction(&metrics);
  Remember(metrics);
  metrics_.WriteStep(metrics);
  if (const std::optional<ExitCode> code = CheckNumerics(*report)) return code;
  const int64_t wish = consensus_.Max(WishAfter(*report));
  bool leaving = wish == kStop;
  if (!leaving && EvaluationIsDue()) {
    if (const std::optional<ExitCode> code = Evaluate()) return code;
    leaving = consensus_.Any(StopSignal() != 0);
  }
  const std::optional<ExitCode> code = SaveOrLeave(leaving);
  makes_room_ = !code && wish == kMakeRoom && !Done();
  return code;
}

TrainingLoop::Wish TrainingLoop::WishAfter(const StepReport& report) const {
  if (report.update.stop_requested || StopSignal() != 0) return kStop;
  const bool asks = trainer_->groups().world.rank() == 0 && run_.others_come != nullptr;
  return asks && run_.others_come() ? kMakeRoom : kNothing;
}

// What lies behind the pointers is not there for long.
void TrainingLoop::Remember(const StepMetrics& step) {
  if (!options().ranks.in_process_recovery) return;
  last_step_ = step;
  last_step_->interval.reset();
  last_step_->times = nullptr;
  last_step_->pipeline = nullptr;
}

// All ranks have the same loss and norm, and so see the same spikes.
void TrainingLoop::DetectSpikes(StepMetrics* metrics) {
  const SpikeScores scores = spikes_.Add(metrics->loss, metrics->grad_norm);
  if (scores.loss) metrics->loss_score = scores.loss->score;
  if (scores.grad_norm) metrics->grad_norm_score = scores.grad_norm->score;
  if (!scores.is_spike()) return;
  const std::string description = DescribeSpike(metrics->iteration, scores);
  rank_.console->Warn(description);
  Tell(RunEventKind::kSpike, metrics->iteration, description);
}

void TrainingLoop::ReportTimes(StepMetrics* metrics) {
  RankTimes mine = times_meter_.Take();
  mine.held_bytes = *metrics->memory_bytes;
  mine.peak_bytes = *metrics->peak_memory_bytes;
  for (const auto& [name, bytes] : rank_.profile.planned) mine.planned_bytes += bytes;
  const Device device = trainer_->stream().device();
  if (device.type == DeviceType::kCuda) {
    const CudaMemory memory = CudaMemoryOf(device.index);
    mine.device_used_bytes = memory.total_bytes - memory.free_bytes;
    mine.device_bytes = memory.total_bytes;
  }
  times_ = MakeTimeReport(GatherRankTimes(mine, trainer_->groups().world),
                          metrics->interval->iterations);
  AddTimes(times_, options().loop.timing_log_level, metrics);
}

void TrainingLoop::ComparePrediction(StepMetrics* metrics) {
  if (!comparer_) return;
  const bool is_whole =
      metrics->global_batch_size == options().trainer.batch_size.global_batch_size &&
      metrics->seq_length.value_or(options().data.seq_length) == options().data.seq_length &&
      metrics->kept_tokens.value_or(options().data.seq_length) == options().data.seq_length;
  if (!is_whole || !comparer_->EndStep(1e-3 * metrics->speed.elapsed_ms)) return;
  const auto ranks = GatherRankTimes(comparer_->Take(), trainer_->groups().world);
  if (!rank_.console->prints()) return;
  const StepComparison comparison = comparer_->Compare(ranks);
  metrics->prediction_excess = comparison.measured_seconds() / comparison.predicted_seconds() - 1;
  const std::string line = FormatComparison(comparison);
  rank_.console->PrintLine(line);
  Tell(RunEventKind::kPredicted, metrics->iteration, line);
  const std::string& save = options().checkpoint.save;
  if (save.empty()) return;
  const absl::Status written =
      WriteFileAtomically(fs_, JoinPath(save, kStepComparisonName), ComparisonText(comparison));
  if (!written.ok())
    rank_.console->WarnOwn(absl::StrCat(
        "the prediction's file could not be written: ", written.message(), "; training continues"));
}

// All ranks have the same sums.
void TrainingLoop::DetectEmptySums(const StepReport& report) {
  constexpr int64_t kMostEmpty = 10;
  const DataParallelOptions& sums = options().trainer.data_parallel;
  const bool none_is_sent = report.sent_gradients.has_value() && *report.sent_gradients == 0;
  const bool all_are_zero = sums.gradient_dtype == DType::kFloat16 && report.update.finite &&
                            report.update.grad_norm == 0;
  empty_steps_ = none_is_sent || all_are_zero ? empty_steps_ + 1 : 0;
  const int64_t plain = none_is_sent ? sums.compression.start_iteration : 0;
  const int64_t steps = options().loop.train_iters - std::max(first_iteration_, plain);
  if (empty_steps_ < std::min(kMostEmpty, steps) || empty_steps_ == 0 ||
      std::exchange(told_empty_, true))
    return;
  const std::string streak = FormatQuantity(empty_steps_, "step");
  if (none_is_sent) {
    rank_.console->Warn(absl::StrCat(
        "in ", streak,
        " in a row no element of a gradient was above gradient_compression.threshold", " = ",
        sums.compression.threshold,
        ": nothing is learned until errors have grown to it; a lower threshold sends more"));
    return;
  }
  rank_.console->Warn(
      absl::StrCat("in ", streak,
                   " in a row all sums of gradients were 0 in fp16, and nothing was learned: they ",
                   "are below its range; a smaller parallel.gradient_predivide_factor, or bf16 as ",
                   "parallel.communication_data_type, may help"));
}

void TrainingLoop::CountSkipped(const StepReport& report) {
  if (report.update.finite) {
    consecutive_failures_ = 0;
    told_nan_ = false;
    return;
  }
  TrainingProgress& progress = trainer_->progress();
  ++progress.skipped_iterations;
  if (!std::isfinite(report.loss)) ++progress.nan_iterations;
  ++skipped_steps_;
  ++consecutive_failures_;
}

std::optional<ExitCode> TrainingLoop::CheckNumerics(const StepReport& report) {
  const TrainingProgress& progress = trainer_->progress();
  // A dynamic loss scale is found by steps whose gradients overflow.
  const bool is_nan = consecutive_failures_ > 0 &&
                      !(options().precision.dynamic_loss_scale && std::isfinite(report.loss));
  if (is_nan && !std::exchange(told_nan_, true)) {
    const bool sums_in_fp16 = options().trainer.data_parallel.gradient_dtype == DType::kFloat16 &&
                              std::isfinite(report.loss);
    Tell(RunEventKind::kNan, progress.iteration,
         absl::StrCat("gradients are not finite, and the step is skipped (loss ", report.loss, ")",
                      sums_in_fp16 ? "; sums in fp16 end at 65504: a larger "
                                     "parallel.gradient_predivide_factor, or bf16 as "
                                     "parallel.communication_data_type, may help"
                                   : ""));
  }
  if (consecutive_failures_ < kMaxConsecutiveFailures) return std::nullopt;
  return Fail(WithExitCode(
      absl::InternalError(absl::StrCat(
          "gradients were not finite in ", consecutive_failures_,
          " iterations in a row, up to iteration ", progress.iteration, " (loss ", report.loss,
          ", loss scale ", report.loss_scale,
          "): stopping without a checkpoint. A lower learning rate, a longer warm-up or bf16 may "
          "help.")),
      kExitNumeric));
}

void TrainingLoop::WarnOfSkippedSteps() {
  const int64_t steps = trainer_->progress().iteration - first_iteration_;
  // A dynamic loss scale is found by skipping steps, but not most of them.
  const bool expected = options().precision.dynamic_loss_scale && 2 * skipped_steps_ <= steps;
  if (skipped_steps_ == 0 || expected) return;
  rank_.console->Warn(absl::StrCat(skipped_steps_, " of ", FormatQuantity(steps, "iteration"),
                                   " changed no weight, because their gradients were not finite"));
}

void TrainingLoop::TellRerun(const StepFinding& finding) {
  if (finding.kind == StepFinding::kTransient) ++other_results_;
  if (finding.message.empty()) return;
  rank_.console->Warn(finding.message);
  Tell(RunEventKind::kRerun, trainer_->progress().iteration, finding.message);
}

void TrainingLoop::WarnOfOtherResults() {
  if (other_results_ == 0) return;
  const int64_t steps = trainer_->progress().iteration - first_iteration_;
  rank_.console->Warn(absl::StrCat(other_results_, " of ", FormatQuantity(steps, "iteration"),
                                   " had other results when they were computed again"));
}

}  // namespace megatron
