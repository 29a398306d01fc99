// One rank's part of training a model: its stage, its memory, its optimizer, and one step after
// another.
//
// On the meta device the same object has no memory, and Measure() returns the memory that it would
// need. Arenas get their sizes in this way, and a dry run prints them.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINER_H_
#define MEGATRON_TRAIN_TRAINER_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/length_schedule.h"
#include "megatron/data/sample.h"
#include "megatron/islands/island_link.h"
#include "megatron/models/measure.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/stage_placement.h"
#include "megatron/models/text_generator.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/optim/data_parallel.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/lr_scheduler.h"
#include "megatron/optim/make_update_rule.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/outer_optimizer.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/optim/parameter_mirror.h"
#include "megatron/optim/qk_clip.h"
#include "megatron/optim/replica_check.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/pipeline/timeline_text.h"
#include "megatron/train/batches/micro_batch_packer.h"
#include "megatron/train/graphs/graphed_stage.h"
#include "megatron/train/metrics/diagnostic_values.h"

namespace megatron {

class Diagnostics;
class ModelStage;
enum class StageMode;
struct StepInputs;

struct TrainerOptions {
  ModelOptions model;
  StagePlacement placement;
  ScheduleKind pipeline_schedule = ScheduleKind::kOneForwardOneBackward;
  int microbatch_group = 0;  // InterleavedOptions::group
  PartCosts action_costs;    // costs of the parts of the model
  bool measure_pipeline = false;
  OptimizerOptions optimizer;
  QkClipOptions qk_clip;
  OptimizerParamSchedule schedule;
  BatchSizeOptions batch_size;
  // If enabled, a training step takes the beginning of each sample, as long as the schedule says.
  // Evaluations take whole samples.
  LengthSchedule curriculum;
  // If enabled, all layers but the first and the last see so many random tokens of each sample in
  // training (token_dropping.h), and all of them once samples are no longer than that.
  LengthSchedule random_ltd;
  PackerOptions packing;
  double clip_grad = 0;
  // Parameters that keep their values (NamePatterns); the expressions are right.
  std::vector<std::string> freeze;
  DataSharding sharding = DataSharding::kNone;
  // Optimizer instances have parts of the states and not copies; `sharding` is not kNone.
  bool shards_states_over_instances = false;
  DataParallelOptions data_parallel;
  // If enabled, the optimizer instances are islands, which train apart between outer steps.
  OuterOptimizerOptions outer;
  // If enabled, the run is one island, and a server makes the outer steps.
  IslandLinkOptions islands;
  int64_t bucket_size = 0;  // see ParameterBuffersOptions
  // The device of a run, for plans on the meta device.
  DeviceType device = DeviceType::kCpu;
  // Part of the optimizer's states in host memory or in a file, which the processor updates. On the
  // CPU it is 0, unless there is a file.
  double host_fraction = 0;
  int host_threads = 1;  // number of threads that do so
  // The folder of the file that has that part; empty: it lies in host memory.
  std::string state_directory;
  int64_t state_extent_elements = StateFile::kExtentElements;  // see state_file.h
  // Whether weights and gradients lie in host memory while they are not used; not on the CPU.
  // `sharding` is kWeights or kNone then, and host_fraction is 1.
  bool weights_on_host = false;
  // The longest text that is generated with these weights, which needs memory of its own; 0: none.
  int64_t max_generation_context = 0;
  int64_t max_encoder_context = 0;  // the longest text that an encoder reads then
  CudaGraphOptions cuda_graphs;     // used on a GPU
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  // Number of steps from one that is measured (diagnostics.h) to the next; 0: none is.
  int64_t diagnostics_interval = 0;
  // Number of steps from one after which ranks compare weights that they should have alike to the
  // next; 0: they never do.
  int64_t replica_check_interval = 0;

  GeneratorLimits generation_limits() const {
    return {model.vocab_size, max_generation_context, max_encoder_context};
  }
};

// The progress of training. With the tensors, this is all that a checkpoint needs.
struct TrainingProgress {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  int64_t consumed_train_tokens = 0;  // counted with a curriculum, and 0 without
  int64_t skipped_iterations = 0;     // gradients overflowed under a dynamic loss scale
  int64_t nan_iterations = 0;         // gradients were not finite without one
  // The run and the round of the outer server that the global copy is of; 0 and -1: of none.
  uint64_t server_run = 0;
  int64_t server_round = -1;
};

// Means over the global batches of a step or an evaluation.
struct Measured {
  double loss = 0;  // the sum of the losses that the model's head measures
  // Each measure and its mean; after a step also those of the router's losses that are trained on.
  absl::InlinedVector<std::pair<Measure, double>, 4> values;
  // The names of measures whose 0 is a mean over no values.
  std::vector<const char*> undefined_means;
};

struct StepReport : Measured {
  // Means over the global batch's samples and the layers with experts, without their coefficients;
  // 1 where all experts are chosen alike, and the mean square of the router's log-sum-exp.
  double load_balancing_loss = 0, z_loss = 0;
  StepResult update;
  double learning_rate = 0;  // learning rate after the step, as Megatron prints it
  std::optional<double> decoupled_learning_rate;  // likewise; that of StepOptions::decoupled_lr
  double loss_scale = 1;                          // loss scale that the step used
  int64_t global_batch_size = 0;
  int64_t seq_length = 0;   // tokens of each sample, or the most of them where they vary
  int64_t kept_tokens = 0;  // those that layers see which drop tokens; 0: all
  double params_norm = 0;
  int64_t num_zeros = 0;
  // The part of the elements of gradients that all ranks sent; set where it depends on gradients.
  std::optional<double> sent_gradients;
  // Empty but after steps that are measured, and for the largest score where QK-clip is on.
  DiagnosticValues diagnostics;
  std::optional<IslandLink::Round> round;  // after a step with a round of the outer server
};

// The requests of a rank in a step. StepReport::update says what any rank has requested.
struct StepRequests {
  bool stop = false;  // end the run after the step
  bool log = false;   // log the step
};

class Trainer {
 public:
  ~Trainer();

  // Collective over `groups`. Everything lives on the stream's device. `sizes` come from
  // Measure() on the meta device, where they are not read.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainerOptions& options, const LossScaler& scaler, const ProcessGroups& groups,
      const StageMemorySizes& sizes, const Stream& stream, MemoryLedger* ledger);

  // Runs a step and an evaluation on the meta device, with the allocations that they make on any
  // device.
  StageMemorySizes Measure();
  // Returns the bytes by name in the arenas at their peak, after Measure().
  std::map<std::string, int64_t> MeasuredActivations() const;

  // An error of the states' file is one of the next step.
  void InitializeWeights(uint64_t seed);
  // Brings the weights to all ranks that use them, after masters were loaded and rounded. It has
  // happened on this rank when the call returns.
  absl::Status ShareWeights();

  // Reports to `progress` what this rank is doing, from now on.
  void ReportTo(RankProgress* progress) { rank_progress_ = progress; }

  // Joins the outer server's islands, if it is an island of theirs. Called once, after weights were
  // initialized or restored. `stop` says whether to wait for the server no longer, then and in
  // later rounds. Collective.
  absl::StatusOr<std::optional<IslandLink::Round>> JoinIslands(IslandLink::Stop stop);

  // Trains one iteration on `source`'s next samples. `before_update`, unless null, runs between the
  // last use of the old weights and their update, and returns this rank's requests.
  //
  // After an error `progress` says whether the step was made before it, because other ranks were
  // lost behind the update; made_step() then has its report.
  absl::StatusOr<StepReport> Step(const SampleSource& source,
                                  const std::function<StepRequests()>& before_update = nullptr);
  const std::optional<StepReport>& made_step() const { return made_step_; }
  // Measures `iterations` global batches of `source` from the one at consumed_valid_samples on, and
  // counts them there, with islands by the global weights. Behind the last whole batch comes the
  // first one again.
  absl::StatusOr<Measured> Evaluate(const SampleSource& source, int64_t iterations);

  // Returns the times that the last step measured, with TrainerOptions::measure_pipeline.
  const MeasuredSchedule& measured_pipeline() const { return measured_; }

  // Returns the plans of all stages for a step of as many micro-batches as the last one had.
  std::vector<StagePlan> PlansOfAllStages() const;

  TrainingProgress& progress() { return progress_; }
  ParameterBuffers& buffers() { return *buffers_; }
  Optimizer& optimizer() { return *optimizer_; }
  OuterOptimizer* outer_optimizer() { return outer_.get(); }  // null: there are no islands
  // Whether an outer server has said that there are no more rounds: the run is at its end.
  bool budget_spent() const { return islands_ != nullptr && islands_->budget_spent(); }
  DataParallel& data_parallel() { return *data_parallel_; }
  OptimizerParamScheduler& scheduler() { return scheduler_; }
  LossScaler& scaler() { return scaler_; }
  ModelStage& stage() { return *stage_; }
  GraphedStage* graphed_stage() { return graphed_stage_.get(); }  // null: there are no graphs
  const ProcessGroups& groups() const { return groups_; }
  const Stream& stream() const { return stream_; }
  // Returns the host's copy of the parameters; on CUDA the first call allocates as much memory on
  // the host.
  const ParameterMirror& host_parameters();
  // Returns a generator that uses the stage's memory. All ranks use it alike, between steps.
  TextGenerator MakeGenerator(MemoryLedger* ledger);
  const TrainerOptions& options() const { return options_; }
  int64_t GlobalBatchSize() const {
    return batch_sizes_.GlobalBatchSize(progress_.consumed_train_samples);
  }
  // Passes over the samples of the next iteration. Weights and schedules stay as they are.
  void PassOverIteration();

 private:
  Trainer(const TrainerOptions& options, const LossScaler& scaler,
          OptimizerParamScheduler scheduler, BatchSizeSchedule batch_sizes,
          const ProcessGroups& groups, const ProcessGroups& island, const StageMemorySizes& sizes,
          const Stream& stream, MemoryLedger* ledger);

  bool OffloadsActivations() const;
  bool OffloadsAttention() const;
  // The schedule of a step of so many micro-batches.
  ScheduleOptions ScheduleFor(int64_t micro_batches) const;
  StagePlan MakePlan(int64_t micro_batches) const;
  const StagePlan& PlanFor(int64_t micro_batches);  // the last one is kept
  // What is packed of a step on all ranks after so many samples.
  MicroBatchPacker::Step PackedAfter(int64_t consumed_samples) const;
  StagePlan PlanForward(int64_t micro_batches) const;
  std::vector<int64_t> MicroBatchesToMeasure() const;
  StepInputs InputsOf(const std::vector<MicroBatch>& batches, StageMode mode) const;
  // The diagnostics of the next step; null: it is not measured.
  Diagnostics* NextDiagnostics() const;
  absl::Status RunPipeline(int64_t micro_batches, Diagnostics* diagnostics);
  absl::StatusOr<StepResult> Update(const StepRequests& requests, Diagnostics* diagnostics);
  // Does what follows the optimizer's update in a step.
  absl::Status FinishStep(Diagnostics* diagnostics, StepReport* report);
  // Ends an update: makes the outer step if one is due, and sends weights that have changed.
  absl::Status FinishUpdate(bool applied, StepReport* report);
  // Takes part in a round of the outer server if the step ends with one. Returns whether masters
  // have changed.
  absl::StatusOr<bool> FinishRound(StepReport* report);
  // Compares weights of replicas, after the steps that are due.
  absl::Status CheckReplicas();
  // Puts the weights that ranks have in common in place of this rank's own, where these differ, or
  // its own again: the global ones with islands, else the masters.
  void UseCommonWeights(bool use);
  // Sums over all ranks the sums of the last stage since they were zeroed, and in a step those of
  // the routers. The host has the result after its next wait for the stream, which it makes once in
  // a step.
  void StartMeasuring(bool router_losses);
  Measured FinishMeasuring();  // the means
  void ReportRouterLosses(StepReport* report) const;
  // The part of the elements of gradients that all ranks have sent in this step.
  double SentGradients() const;
  void SumRouterLosses();
  void SumOverGrid(const Tensor& sums);  // over the grid's ranks that have other samples
  int64_t MoeLayers() const;             // number of layers with experts in the whole model
  int64_t NumSums() const;               // number of sums of measures, which come first in report_
  // The tokens of each sample in the step that follows `iteration` steps.
  int64_t SeqLengthAfter(int64_t iteration) const;
  // The tokens of each sample that layers see which drop tokens, in that step; 0: all.
  int64_t KeptTokensAfter(int64_t iteration) const;
  // The values of it for which memory is planned.
  std::vector<int64_t> KeptTokensToMeasure() const;
  // The ranks that hold the other samples of the batch of whose loss the gradient is the mean.
  const ProcessGroup& SamplesGroup() const {
    return groups_.tensor_row.size() > 1 ? groups_.data_rows : island_.data;
  }
  // Packs the samples of a step.
  absl::Status Pack(const SampleSource& source, const MicroBatchPacker::Step& step);
  void ReadAhead(const SampleSource& source, int64_t batch);
  // The first error of the groups, or of the states' file.
  absl::Status GroupStatus() const;
  absl::Status OpenStateFile();

  TrainerOptions options_;
  ProcessGroups groups_;
  ProcessGroups island_;  // those of groups_ within the island; all of them where there are none
  Stream stream_;
  LossScaler scaler_;
  OptimizerParamScheduler scheduler_;
  BatchSizeSchedule batch_sizes_;
  std::unique_ptr<ModelStage> stage_;
  std::unique_ptr<ParameterBuffers> buffers_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ReplicaCheck> replica_check_;  // null: nothing is compared
  int64_t last_alike_ = -1;                // the last iteration after which replicas were alike
  std::unique_ptr<QkClip> qk_clip_;        // null: nothing is clipped
  std::unique_ptr<OuterOptimizer> outer_;  // null: there are no islands
  std::unique_ptr<ParameterMirror> host_parameters_;
  std::unique_ptr<IslandLink> islands_;  // null: there is no outer server
  IslandLink::Stop stop_;
  std::unique_ptr<DataParallel> data_parallel_;
  std::unique_ptr<StageMemory> memory_;
  std::unique_ptr<Diagnostics> diagnostics_;  // null: no step is measured
  MicroBatchPacker packer_;
  // Packs the samples of a cube's inner layout (layers/tensor_grid.h); null: there is no cube.
  std::unique_ptr<MicroBatchPacker> inner_packer_;
  std::unique_ptr<GraphedStage> graphed_stage_;
  Buffer report_;
  HostMirror host_report_;
  StagePlan plan_;  // schedule for the last step's number of micro-batches
  MeasuredSchedule measured_;
  TrainingProgress progress_;
  std::optional<StepReport> made_step_;
  RankProgress unwatched_;
  RankProgress* rank_progress_ = &unwatched_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINER_H_
