// One rank's part of training a model: its stage, its memory, its optimizer, and one step after
// another.
//
// On the meta device the same object has no memory, and Measure() returns the memory that it would
// need. Arenas get their sizes in this way, and a dry run prints them.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINER_H_
#define MEGATRON_TRAIN_TRAINER_TRAINER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/length_schedule.h"
#include "megatron/data/sample.h"
#include "megatron/islands/island_link.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/stage_placement.h"
#include "megatron/models/text_generator.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/optim/data_parallel.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/lr_scheduler.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/optim/parameter_mirror.h"
#include "megatron/optim/qk_clip.h"
#include "megatron/optim/replica_check.h"
#include "megatron/optim/rules/make_update_rule.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/pipeline/timeline_text.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/batches/micro_batch_packer.h"
#include "megatron/train/graphs/graphed_stage.h"
#include "megatron/train/rerun/step_validator.h"
#include "megatron/train/trainer/shard_copies.h"
#include "megatron/train/trainer/source_losses.h"
#include "megatron/train/trainer/stage_plans.h"
#include "megatron/train/trainer/step_measures.h"
#include "megatron/train/trainer/step_report.h"
#include "megatron/train/trainer/training_progress.h"

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
  // The number of first updates that are not late, with OptimizerOptions::delayed_gradients.
  int64_t prompt_updates = 0;
  // The folder of the file that has that part; empty: it lies in host memory.
  std::string state_directory;
  int64_t state_extent_elements = StateFile::kExtentElements;  // see state_file.h
  DType main_grads_dtype = DType::kFloat32;  // that in which gradients are kept; or kBFloat16
  // Whether gradients lie in host memory; not on the CPU. `sharding` is kGradients, kWeights or
  // kNone then, and host_fraction is 1.
  bool gradients_on_host = false;
  // Whether weights and gradients lie in host memory while they are not used; not on the CPU.
  // `sharding` is kWeights or kNone then, and host_fraction is 1.
  bool weights_on_host = false;
  // The folder of the file that has these weights; empty: they lie in host memory.
  std::string weight_directory;
  // The longest text that is generated with these weights, which needs memory of its own; 0: none.
  int64_t max_generation_context = 0;
  int64_t max_encoder_context = 0;  // the longest text that an encoder reads then
  CudaGraphOptions cuda_graphs;     // used on a GPU
  // Whether the losses of single tokens are asked for (ScoreTokens).
  bool scores_tokens = false;
  // Number of the sources of training samples whose losses are told apart (SampleSource::SourceOf);
  // 0: none are.
  int64_t num_sources = 0;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  // Number of steps from one that is measured (diagnostics.h) to the next; 0: none is.
  int64_t diagnostics_interval = 0;
  // Number of steps from one after which ranks compare weights that they should have alike to the
  // next; 0: they never do.
  int64_t replica_check_interval = 0;
  RerunOptions rerun;  // steps that are computed again; on the CPU
  // Number of other ranks that have a copy of a rank's shard of the optimizer's states, where these
  // are sharded, and number of steps from one after which they are made to the next; on the CPU.
  int shard_copies = 0;
  int64_t shard_copy_interval = 1;
  int64_t host = 0;  // a number that ranks of one host have alike

  GeneratorLimits generation_limits() const {
    return {model.vocab_size, max_generation_context, max_encoder_context};
  }
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
  // Tells where the calls of its groups are recorded, if they are (recorded_communicator.h).
  void RecordCallsIn(CallRecord* record) { call_record_ = record; }

  // Joins the outer server's islands, if it is an island of theirs. Called once, after weights were
  // initialized or restored. `stop` says whether to wait for the server no longer, then and in
  // later rounds. Collective.
  absl::StatusOr<std::optional<IslandLink::Round>> JoinIslands(IslandLink::Stop stop);

  // Starts an update that came late (Optimizer::StartPendingUpdate) beside the next step, which
  // must follow. Nobody reads masters and states until that step has ended. Without it the step
  // makes the update behind its passes, with the same bits.
  void UpdateAhead();
  // Trains one iteration on `source`'s next samples. `before_update`, unless null, runs between the
  // last use of the old weights and their update, and returns this rank's requests. Until then what
  // a checkpoint holds stays as it is, unless passes_change_states().
  //
  // After an error `progress` says whether the step was made before it, because other ranks were
  // lost behind the update; made_step() then has its report.
  absl::StatusOr<StepReport> Step(const SampleSource& source,
                                  const std::function<StepRequests()>& before_update = nullptr);
  const std::optional<StepReport>& made_step() const { return made_step_; }
  // Whether the errors of compressed sums, which a checkpoint holds too, change while gradients are
  // summed, before a step's update. A device's errors do not: the host has a copy.
  bool passes_change_states() const;
  // Measures `iterations` global batches of `source` from the one at consumed_valid_samples on, and
  // counts them there, with islands by the global weights. Behind the last whole batch comes the
  // first one again.
  absl::StatusOr<Measured> Evaluate(const SampleSource& source, int64_t iterations);
  // Takes samples [first, first + losses.size() / seq_length): the loss of each of their tokens,
  // and 1 where its label is the likeliest token, else 0.
  using TakeTokenScores = absl::FunctionRef<void(int64_t first, absl::Span<const float> losses,
                                                 absl::Span<const float> hits)>;
  // Gives every rank the scores of all tokens of `source`, whose size is a multiple of the global
  // batch, by the weights that Evaluate takes. Needs TrainerOptions::scores_tokens.
  absl::Status ScoreTokens(const SampleSource& source, TakeTokenScores take);
  // Ends the reading of samples ahead, which the three calls above begin: their sources must live
  // until then, or longer than this.
  void ReleaseSources();

  // Makes copies of the shards of states that all ranks have now, unless they have been made; where
  // there are none to make, nothing happens. Collective. Called before the first step and before
  // ranks leave; a step makes those that are due. `evaluated_iteration` is the last one after which
  // the model was evaluated.
  absl::Status CopyShards(int64_t evaluated_iteration);
  // Notes that the model was evaluated after the last step.
  void NoteEvaluation();
  const ShardCopies* shard_copies() const { return shard_copies_.get(); }  // null: there are none

  // What this rank has, besides tensors.
  CommonState common_state(int64_t evaluated_iteration) const;
  // The numbers of the update rule, those of all parameters.
  std::vector<float> UpdateNumbers();

  // Returns the times that the last step measured, with TrainerOptions::measure_pipeline.
  const MeasuredSchedule& measured_pipeline() const { return measured_; }

  // Returns the plans of all stages for a step of as many micro-batches as the last one had.
  std::vector<StagePlan> PlansOfAllStages() const { return plans_.OfAllStages(); }

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
  Trainer(const TrainerOptions& options, const NamePatterns& frozen, const LossScaler& scaler,
          OptimizerParamScheduler scheduler, BatchSizeSchedule batch_sizes,
          const ProcessGroups& groups, const ProcessGroups& island, const StageMemorySizes& sizes,
          const Stream& stream, MemoryLedger* ledger);

  bool OffloadsActivations() const;
  bool OffloadsAttention() const;
  // What is packed of a step on all ranks after so many samples.
  MicroBatchPacker::Step PackedAfter(int64_t consumed_samples) const;
  // The numbers of micro-batches of the steps that may need the most memory, the largest last.
  std::vector<int64_t> MicroBatchesToMeasure() const;
  StepInputs InputsOf(const std::vector<MicroBatch>& batches, StageMode mode) const;
  // The packer of the samples of whose tokens `packer`'s micro-batches have the losses.
  const MicroBatchPacker& PackerOfLosses(const MicroBatchPacker& packer) const {
    return inner_packer_ != nullptr ? *inner_packer_ : packer;
  }
  // The diagnostics of the next step; null: it is not measured.
  Diagnostics* NextDiagnostics() const;
  // What the passes of a step begin with, and what they tell besides.
  struct Passes {
    const SampleSource* source;  // of the samples
    const MicroBatchPacker* packer;
    int64_t micro_batches;
    Diagnostics* diagnostics;
    bool read_ahead = false;           // whether the next step is
    ExecutedStep* executed = nullptr;  // receives what they computed; may be null
  };
  absl::Status RunPipeline(const Passes& passes);
  // Runs the forward and backward passes of all micro-batches, and reduces gradients.
  absl::Status RunPasses(const Passes& passes);
  // Whether a rank can compute another one's samples, and tell whether the gradients are the same.
  bool CanComputeForOthers() const;
  // Whether the gradients of all samples of this rank are there before they are reduced.
  bool KeepsOwnGradients() const;
  // The checksum of gradients, all of them or those that are this rank's to update; `finite`,
  // unless it is null, becomes false if one is not.
  uint32_t ChecksumOfGradients(bool all, bool* finite) const;
  // Computes the step that `first` is of again if it is due.
  absl::StatusOr<StepFinding> ValidateStep(const SampleSource& source,
                                           const MicroBatchPacker::Step& packed,
                                           Diagnostics* diagnostics, const ExecutedStep& first);
  absl::StatusOr<StepResult> Update(const StepRequests& requests, Diagnostics* diagnostics);
  // Does what follows the optimizer's update in a step.
  absl::Status FinishStep(Diagnostics* diagnostics, StepReport* report);
  // Ends an update: makes the outer step if one is due, and sends weights that have changed.
  absl::Status FinishUpdate(StepReport* report);
  // Takes part in a round of the outer server if the step ends with one. Returns whether masters
  // have changed.
  absl::StatusOr<bool> FinishRound(StepReport* report);
  // Compares weights of replicas, after the steps that are due.
  absl::Status CheckReplicas();
  // Puts the weights that ranks have in common in place of this rank's own, where these differ, or
  // its own again: the global ones with islands, else the masters.
  void UseCommonWeights(bool use);
  // The part of the elements of gradients that all ranks have sent in this step.
  double SentGradients() const;
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
  // The first error of the groups, or of the buffers' files.
  absl::Status GroupStatus() const;
  absl::Status OpenFiles();

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
  int64_t last_alike_ = -1;  // the last iteration after which replicas were alike
  std::unique_ptr<ShardCopies> shard_copies_;
  int64_t evaluated_iteration_ = -1;  // with shard copies: as CopyShards and NoteEvaluation said
  // Computes steps again; null: nothing does. The second packs the samples of the next
  // data-parallel rank; null: those are not computed here.
  std::unique_ptr<StepValidator> validator_;
  std::unique_ptr<MicroBatchPacker> next_packer_;
  CallRecord no_calls_;
  CallRecord* call_record_ = &no_calls_;
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
  // Those of the last stage with TrainerOptions::scores_tokens (StepInputs::token_scores_M2T).
  Buffer token_scores_;
  Tensor token_scores_M2T_;
  HostMirror host_token_scores_;
  std::unique_ptr<GraphedStage> graphed_stage_;
  std::unique_ptr<SourceLosses> source_losses_;  // null on other stages, and without num_sources
  StepMeasures measures_;
  StagePlans plans_;
  MeasuredSchedule measured_;
  TrainingProgress progress_;
  std::optional<StepReport> made_step_;
  RankProgress unwatched_;
  RankProgress* rank_progress_ = &unwatched_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINER_H_
