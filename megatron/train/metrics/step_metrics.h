// The values of a training step and of an evaluation. They are computed once (step_meter.h), and
// every metrics writer takes from them what it shows.
#ifndef MEGATRON_TRAIN_METRICS_STEP_METRICS_H_
#define MEGATRON_TRAIN_METRICS_STEP_METRICS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "megatron/tensor/trace/time_category.h"
#include "megatron/train/metrics/diagnostic_values.h"

namespace megatron {

struct MeasuredSchedule;
struct TimeReport;

// The name of `loss` below in the log line and in files, which is Megatron's.
constexpr char kLmLossName[] = "lm loss";

// Another measure of the model, with its name in the log line ("sop loss").
struct NamedValue {
  std::string name;
  double value = 0;
  bool is_loss = false;  // a part of the loss; else a share of right predictions
};

// The speed of an iteration, or the mean speed of the iterations of an interval.
struct Speed {
  double elapsed_ms = 0;  // time per iteration
  double tokens_per_second = 0;
  double model_tflops = 0;  // TFLOP/s of all ranks; attention is counted where it is causal
  // Shares of the devices' peak, from 0 to 1, if that is known. The first counts attention only
  // where the causal mask allows it, the second in full.
  std::optional<double> mfu, full_mfu;
  std::optional<double> tflops_per_rank;  // set with logging.log_throughput
  absl::Duration time_left = absl::ZeroDuration();
};

// The values of the iterations since the last log line.
struct IntervalMetrics {
  // Means of the losses over the iterations that were not skipped; empty if all were.
  std::vector<NamedValue> losses;
  Speed speed;
  int64_t iterations = 0;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;  // skipped ones whose loss was not finite
};

// Where the time since the last log line went, with evaluations and saves: shares from 0 to 1, as
// means over ranks. Unset: no rank has such communication.
struct TimeShares {
  std::array<std::optional<double>, kNumTimeCategories> categories;  // their sum is 1
  // The least and the most of all ranks; unset if there is one rank.
  std::array<std::optional<double>, kNumTimeCategories> least, most;
  std::optional<double> communication;  // the sum of all groups
  std::optional<double> hidden;         // communication beside computing, which is in no category
  // The rank whose own work takes longest beside that of its peers, and by which share it does.
  std::optional<int64_t> slowest_rank;
  std::optional<double> slowest_excess;
};

struct StepMetrics {
  absl::Time time;        // time at which the step ended
  int64_t iteration = 0;  // the first iteration is 1
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;
  int64_t global_batch_size = 0;
  // The tokens of each sample, and of all samples up to and with this step; set with a curriculum.
  std::optional<int64_t> seq_length, consumed_tokens;
  // The tokens of each sample that layers see which drop some; set with random-LTD.
  std::optional<int64_t> kept_tokens;
  double loss = 0;                      // kLmLossName
  std::vector<NamedValue> others = {};  // other measures of the model
  double total_loss = 0;                // the sum of the losses of the model's head
  // The loss on each of several training files since the last log line, by the files' names: the
  // mean over its tokens that count in iterations that were not skipped. Set at iterations that are
  // logged; files without such tokens aren't there.
  std::vector<NamedValue> sources = {};
  double learning_rate = 0;
  std::optional<double> decoupled_learning_rate;  // set with optimizer.decoupled_lr
  double loss_scale = 1;
  std::optional<double> grad_norm;    // unset if the step was skipped
  std::optional<double> params_norm;  // set with logging.log_params_norm
  std::optional<int64_t> num_zeros;   // set with logging.log_num_zeros_in_grad
  // The part of the elements of gradients that ranks sent, where it depends on the gradients.
  std::optional<double> sent_gradients;
  bool skipped = false;
  // Distances from the steps before in standard deviations; set with logging.spike_threshold once
  // enough steps were taken.
  std::optional<double> loss_score, grad_norm_score;
  // The share by which steps took longer than predicted; set at the step at which a run compares
  // itself with its prediction.
  std::optional<double> prediction_excess;
  // The privacy that all rounds have cost; set after the steps with a round of a federated run.
  std::optional<double> epsilon;
  DiagnosticValues diagnostics = {};  // empty but at steps that are measured
  Speed speed;
  int64_t world_size = 0;  // number of ranks; 0: unknown
  // Memory by the ledger of the rank that writes, now and at its peak; set at iterations that are
  // logged.
  std::optional<int64_t> memory_bytes, peak_memory_bytes;
  // The values of iterations that are logged: each multiple of train.log_interval, the first three
  // of this program, and those that logging.log_interval_seconds asks for.
  std::optional<IntervalMetrics> interval;
  TimeShares time_shares;  // set at iterations that are logged
  // All of the ranks' times; null at iterations that are not logged. Valid until the next step.
  const TimeReport* times = nullptr;
  // Megatron's timers: TensorBoard's name and seconds per iteration, by logging.timing_log_level.
  std::vector<NamedValue> timers = {};
  // The times at which the parts of the step's pipeline ran; null without
  // logging.pipeline_timeline_file. Valid until the next step.
  const MeasuredSchedule* pipeline = nullptr;
};

struct EvaluationMetrics {
  absl::Time time;  // time at which the evaluation ended
  int64_t iteration = 0;
  int64_t consumed_samples = 0;  // samples of the training set
  bool on_test_set = false;
  double loss = 0;                      // kLmLossName
  std::vector<NamedValue> others = {};  // other measures of the model
  // The loss on each of several validation sets, by the sets' names. The values above are means
  // over sets then.
  std::vector<NamedValue> sets = {};
  // The metrics of tasks by task and metric, "hellaswag/acc"; empty where none were evaluated.
  std::vector<NamedValue> tasks = {};
};

// e^loss, kept printable as Megatron keeps it: at most e^20.
double Perplexity(double loss);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_STEP_METRICS_H_
