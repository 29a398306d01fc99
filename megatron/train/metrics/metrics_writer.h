// Something that takes the metrics of a run while it trains: the log, a file, a service.
//
// A new writer is a class beside this file that OpenMetricsWriters (metrics_writers.cc) opens.
#ifndef MEGATRON_TRAIN_METRICS_METRICS_WRITER_H_
#define MEGATRON_TRAIN_METRICS_METRICS_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

struct RunSummary;

// The facts of a run that are known when its writers are opened.
struct RunStart {
  int64_t last_iteration = 0;    // the run goes on after this one; 0: it begins
  int64_t consumed_samples = 0;  // number of training samples up to there
  std::string run_id;            // the same for each start of the same run
  std::string config_text;       // the configuration, as EffectiveConfigText() writes it
  // Why a launcher started the program again; empty if it did not, or does not say.
  std::string restart_reason;
  // The values of step `last_iteration`, which may not have been written before other ranks were
  // lost; null: they were.
  const StepMetrics* last_step = nullptr;
  // What writers of this run, of other ranks too, have left (MetricsWriter::Unwritten).
  std::string unwritten;
};

// TensorBoard's tag of RunStart::restart_reason.
constexpr char kRestartReasonTag[] = "restart reason";

// The rank that prints for all has the writers, and calls them on one thread, in the order of
// training. An error is a warning and does not end the run; the writer is called again at the next
// step.
//
// A run that continues from a checkpoint takes steps again that it had taken before it was stopped.
// A writer that keeps a history drops those steps when it is opened, and makes durable in Sync()
// what the next start must find.
class MetricsWriter {
 public:
  virtual ~MetricsWriter() = default;

  // Takes a step's values: at every step, and with `interval` where the step is logged.
  virtual absl::Status WriteStep(const StepMetrics& step) = 0;
  virtual absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) = 0;
  virtual absl::Status WriteEvent(const RunEvent& /*event*/) { return absl::OkStatus(); }

  // Makes durable what was written. Called before a checkpoint commits, so that no step of the
  // checkpoint is missing, and at the end of training.
  virtual absl::Status Sync() { return absl::OkStatus(); }

  // Returns the lines that could not be written so far, for the writer that comes after this one
  // where the ranks of a run change.
  virtual std::string Unwritten() const { return ""; }

  // Takes what is known at the end of a run of several ranks, after the last Sync.
  virtual absl::Status WriteSummary(const RunSummary&) { return absl::OkStatus(); }
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_METRICS_WRITER_H_
