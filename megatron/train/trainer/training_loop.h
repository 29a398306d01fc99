// The loop around the steps: logging, evaluation, checkpoints, and every way to stop.
//
// The order within an iteration is Megatron's: step, log, evaluate, then leave on a signal, save,
// leave when time is up or the exit interval is reached. Whoever leaves saves first. Every rank
// runs this loop; what a rank sees for itself (a signal, a clock, a disk) all decide about
// together, so that they save the same step and leave after the same one. One rank reports for all.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINING_LOOP_H_
#define MEGATRON_TRAIN_TRAINER_TRAINING_LOOP_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/async_checkpoint_writer.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/batches/evaluation_tasks.h"
#include "megatron/train/batches/phase_samples.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/metrics/communication_table.h"
#include "megatron/train/metrics/metrics_writers.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/metrics/rank_times.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/metrics/run_totals.h"
#include "megatron/train/metrics/spike_detector.h"
#include "megatron/train/metrics/step_comparer.h"
#include "megatron/train/metrics/step_comparison.pb.h"
#include "megatron/train/metrics/step_meter.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/metrics/step_times.h"
#include "megatron/train/metrics/time_report.h"
#include "megatron/train/metrics/what_if.h"
#include "megatron/train/profile/profile_window.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/local_saver.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/trainer.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {

// How a run goes on in processes that had other ranks before.
struct GoingOn {
  std::string how;   // a line for people
  absl::Time since;  // SteadyNow() when the ranks before had ended
  // The last step that this process has made, unless it has made none.
  std::optional<StepMetrics> last_step;
  // The lines of metrics that this process could not write, and has handed to nobody.
  std::string unwritten_metrics;
};

// The inputs that the loops of all ranks of a process share; none of them changes while they run.
struct TrainingRun {
  RunOptions options;
  TrainingData data;
  EvaluationTasks tasks;
  RunDescription description;
  LocalPlace local;                // where local checkpoints lie
  bool starts_from_saved = false;  // the iteration that the run starts from is in checkpoint.save
  SpeedBasis speed;
  absl::Time program_start;    // as SteadyNow() tells it
  std::string restart_reason;  // why a launcher started the run again; empty: it did not
  StepComparison prediction;   // what is expected of a step; without parts: nothing
  RunEventListener on_event;   // hears what the rank that prints for all has to tell; null: nobody
  std::optional<GoingOn> going_on;
  // Returns whether processes have come that would be ranks of the run; the first rank asks after
  // each step. Null: nobody asks.
  std::function<bool()> others_come;
  // Takes the lock on the directory of checkpoints anew where its file was removed or replaced, and
  // returns whether it had to. All ranks call it before a save, the first one before the others.
  // kFailedPrecondition: another run has the directory. Null: there is no lock.
  std::function<absl::StatusOr<bool>(bool is_first)> keep_save_lock;
};

class TrainingLoop {
 public:
  // The parts of a rank that its loop works with, besides the trainer.
  struct Rank {
    ProcessGroup saving;        // all ranks, for the thread that writes checkpoints
    ProcessGroup local_saving;  // all ranks, for the thread that writes local checkpoints
    ProfileWindow::Context profile;
    Trace* trace = nullptr;  // follows the trainer's stream first
    RankConsole* console = nullptr;
    RankProgress* progress = nullptr;  // receives reports of what the rank is doing
    FirstFailure* failure = nullptr;
    // Where the state is from other ranks' memory: the last iteration after which all of them had
    // evaluated.
    std::optional<int64_t> evaluated_iteration;
  };

  // All must outlive this.
  TrainingLoop(const TrainingRun& run, const Rank& rank, FileSystem& fs, Trainer* trainer);
  // The trainer reads no samples ahead after this.
  ~TrainingLoop();

  // Trains until done or told to stop. The returned code says why it ended; an error that ended it
  // is in the rank's failure.
  ExitCode Run();

  // The figures of the steps and evaluations so far.
  const RunTotals& totals() const { return totals_; }

  // Whether training has stopped so that other processes become ranks of the run.
  bool makes_room() const { return makes_room_; }
  // With in-process recovery: the last step that was made, and the last iteration after which the
  // model was evaluated; -1: none.
  const std::optional<StepMetrics>& last_step() const { return last_step_; }
  int64_t evaluated_iteration() const { return last_evaluated_iteration_; }
  // GoingOn::unwritten_metrics after this loop.
  std::string unwritten_metrics() const { return handed_on_ + metrics_.Unwritten(); }

 private:
  // Passes over the next iteration if the configuration says so; returns whether it does.
  bool PassesOver();
  bool Done() const {
    return trainer_->progress().iteration >= options().loop.train_iters || trainer_->budget_spent();
  }
  const RunOptions& options() const { return run_.options; }

  // Makes the error the rank's failure. Returns the code to leave with.
  ExitCode Fail(const absl::Status& error);
  // The same of an error of a step or an evaluation: one of the data, or else of another rank.
  ExitCode FailStep(const absl::Status& error);
  ExitCode Train();
  RunStart MetricsStart() const;
  // Tells an event of the run to its writers and its listener, once for all ranks.
  void Tell(RunEventKind kind, int64_t iteration, const std::string& message);
  // Prints what the profile has to say, or why it could not be written.
  void PrintProfile(const absl::StatusOr<std::string>& profiled);
  // Prints and writes the table of all calls between ranks, and what slow ranks and calls cost,
  // unless there is one rank or one has failed.
  void WriteSummary();
  std::optional<WhatIf> ReplaySteps(const std::vector<std::vector<StepTimes>>& steps) const;
  // Gives a step that is logged its times and memory, those of all ranks.
  void ReportTimes(StepMetrics* metrics);
  // Compares the run with its prediction, once enough steps of the whole batch were taken.
  void ComparePrediction(StepMetrics* metrics);
  // Returns whether the times of the step that comes may be recorded.
  bool MaySample() const;
  // Returns when saves in progress need what they save no longer.
  void WaitUntilRead();
  // Returns the requests of this rank in the step that is under way.
  StepRequests Requests() const;
  // What a rank wishes after a step. All ranks follow the greatest wish.
  enum Wish : int64_t { kNothing, kMakeRoom, kStop };
  Wish WishAfter(const StepReport& report) const;
  void Remember(const StepMetrics& step);
  // Evaluates again where other ranks were lost meanwhile.
  std::optional<ExitCode> RepeatEvaluation();
  // Compares the step with those before it, and warns of a spike.
  void DetectSpikes(StepMetrics* metrics);
  // Each returns the code to leave with, or nothing to go on.
  std::optional<ExitCode> Iterate();
  std::optional<ExitCode> CheckNumerics(const StepReport& report);
  // Warns once of steps in a row that have summed nothing of their gradients.
  void DetectEmptySums(const StepReport& report);
  void CountSkipped(const StepReport& report);
  bool EvaluationIsDue() const;
  std::optional<ExitCode> SaveOrLeave(bool stop_requested);
  // Ends what is under way.
  ExitCode MakeRoom();

  // Measures the model on the first `iterations` batches from sample `first` on.
  absl::StatusOr<EvaluationMetrics> EvaluateOn(const SampleSource& source, int64_t first,
                                               int64_t iterations, bool on_test_set);
  void Report(EvaluationMetrics metrics);
  std::optional<ExitCode> Evaluate();
  bool TasksAreDue() const;
  // Evaluates the model on the run's tasks, and appends their metrics.
  absl::Status EvaluateTasks(std::vector<NamedValue>* metrics);
  // Evaluates the finished model on the test set, after its checkpoint is saved.
  ExitCode Test();
  // Returns an error if another run has the directory of checkpoints.
  absl::Status KeepSaveLock();
  // Starts a save once the one before has ended, and warns if that one has failed. Nothing is saved
  // over another run's checkpoints: that is an error.
  absl::Status StartSave();
  absl::Status FinishSave();
  // The same of a local checkpoint; warns of an error.
  void SaveLocal();
  void FinishLocalSave();
  // Prints what has failed of the save that was started last; `next` says when the next one is.
  void WarnOfFailedSave(const absl::Status& status, absl::string_view next);
  std::string DescribeNewestCheckpoint() const;
  // Prints how many steps of a run that ends well were skipped, where that is not as it should be.
  void WarnOfSkippedSteps();
  // Tells what a step that was computed again has found, and in the end how often.
  void TellRerun(const StepFinding& finding);
  void WarnOfOtherResults();
  // Saves and waits until everything is on disk.
  ExitCode SaveAndLeave(ExitCode code);

  const TrainingRun& run_;
  const Rank rank_;
  FileSystem& fs_;
  Trainer* trainer_;
  Consensus consensus_, saving_consensus_;
  std::unique_ptr<AsyncCheckpointWriter> writer_;  // null: no checkpoints
  LocalSaver local_saver_;
  ProfileWindow profile_;
  int64_t first_iteration_ = 0;
  const PhaseSamples samples_;
  StepMeter meter_;
  RunTotals totals_;
  SpikeDetector spikes_;
  absl::Time last_logged_;  // time of the last log line; before the first one, the loop's start
  RankTimesMeter times_meter_;
  StepSampler sampler_;
  std::optional<StepComparer> comparer_;  // with a prediction
  TimeReport times_;                      // those of the last log line
  std::string handed_on_;                 // lines of processes before, until there are writers
  MetricsWriters metrics_;
  int64_t saving_iteration_ = -1;  // the iteration of the save that was started last
  // The iteration of the newest checkpoint; -1: these ranks have saved none, nor loaded one from
  // the directory of saves.
  int64_t saved_iteration_ = -1;
  int64_t last_evaluated_iteration_ = -1;
  int64_t consecutive_failures_ = 0;
  bool told_nan_ = false;      // in this row of failures
  int64_t skipped_steps_ = 0;  // number of steps of this program whose gradients were not finite
  int64_t empty_steps_ = 0;    // number of steps in a row whose sums of gradients were 0
  bool told_empty_ = false;
  int64_t other_results_ = 0;  // steps that had other results when they were computed again
  bool makes_room_ = false;
  std::optional<StepMetrics> last_step_;  // with in-process recovery
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINING_LOOP_H_
