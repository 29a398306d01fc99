// Turns a configuration into the option structs of the libraries. The differences between kinds of
// models are in train/recipes. The *_section.h have the options of single subjects: the model, the
// data, the pipeline, the optimizer, and what data-parallel ranks send.
#ifndef MEGATRON_TRAIN_TRAINER_RUN_OPTIONS_H_
#define MEGATRON_TRAIN_TRAINER_RUN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/text_generator.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/train/batches/evaluation_tasks.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/metrics/spike_detector.h"
#include "megatron/train/metrics/timers.h"
#include "megatron/train/profile/profile_options.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// Options of the loop around the steps.
struct LoopOptions {
  int64_t train_iters = 0;
  absl::btree_set<int64_t> iterations_to_skip;  // counted from 0
  int64_t eval_interval = 0;                    // 0: no evaluation
  int64_t eval_iters = 0;
  int64_t eval_tasks_interval = 0;  // a multiple of eval_interval
  int64_t log_interval = 100;
  absl::Duration log_time = absl::ZeroDuration();  // the most time between log lines; zero: any
  int64_t exit_interval = 0;                       // 0: never
  // The iterations after which the run ends, since its data change there.
  absl::btree_set<int64_t> phase_transitions;
  int64_t exit_duration_minutes = 0;  // 0: never
  bool log_throughput = false;
  int timing_log_level = 0;  // see Timer
  TimerOption timing_log_option = TimerOption::kMinMax;
  SpikeOptions spikes;
  std::string metrics_file;            // empty: none
  std::string tensorboard_dir;         // empty: none
  std::string pipeline_timeline_file;  // empty: none
  std::string on_event;                // a shell's command; empty: none
  std::string prometheus_textfile;     // empty: none
  int64_t metrics_port = -1;           // 0: any free one; -1: none
  // The time without progress after which the run is unhealthy at that port.
  absl::Duration silence_limit = absl::Minutes(10);
};

struct CheckpointOptions {
  std::string save, load;        // empty: nothing is saved, or loaded
  std::string save_huggingface;  // empty: no model is written for Hugging Face's libraries
  int64_t save_interval = 0;     // 0: at the end only
  int64_t keep_last = 0;         // 0: all
  int64_t retain_interval = 0;   // see SaveOptions
  bool async_save = false;
  bool finetune = false;
  bool upcycles = false;  // `load` is of a dense model (model.moe_use_upcycling)
  bool no_load_optim = false;
  bool use_checkpoint_args = false;  // the model is that of the checkpoint (checkpoint_args.h)
  std::string local_save;            // as it is written; empty: no local checkpoints
  int64_t local_save_interval = 0;   // 0: no local checkpoints
  int peer_copies = 0;
};

struct GenerationOptions {
  bool enabled = false;
  std::string prompt;
  int64_t tokens = 0;
  SamplingOptions sampling;
};

struct PrecisionOptions {
  bool dynamic_loss_scale = false;
  DynamicLossScaleOptions dynamic;
  double constant_loss_scale = 1;
};

// The way in which ranks reach each other's GPUs; kAny: NCCL if it is possible.
enum class DistributedBackend { kAny, kNccl, kHost };

// Options of how ranks run and how long they wait for each other.
struct RanksOptions {
  bool processes = false;     // ranks are processes; else threads
  int restarts = 0;           // times that lost ranks are started again
  int64_t min_data_size = 0;  // least data_parallel_size to go on with; 0: all ranks
  // The ranks that are left go on in their processes when others are lost.
  bool in_process_recovery = false;
  int replacements = 0;  // times that single lost ranks are started again then
  DistributedBackend backend = DistributedBackend::kAny;
  bool sum_in_rank_order = false;                    // see NcclWorldOptions
  bool check_collectives = false;                    // see NcclWorldOptions
  absl::Duration start_timeout = absl::Minutes(10);  // longest time to find each other
  absl::Duration timeout = absl::Minutes(10);        // longest wait after that
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  absl::Duration stuck_timeout = absl::Seconds(10);  // zero: none
};

// The choice of cuBLASLt's kernels for matrix products, and the other work that they do along with
// them.
struct GemmOptions {
  std::string plan_file;  // empty: none
  bool time_kernels = false;
  // Where these are unset and `auto`, the GPUs decide (gemm/choose_epilogues.h).
  std::optional<bool> fuse_bias_gradients;
  config::FuseGelu::Type fuse_gelu = config::FuseGelu::auto_;
};

// The choice of attention's kernels on a GPU.
struct AttentionOptions {
  config::AttentionBackend::Type backend = config::AttentionBackend::auto_;
  std::string plan_file;  // empty: none
};

// What the time of steps is predicted from, and what for.
struct PlanningOptions {
  bool auto_layout = false;
  int64_t ranks = 0;          // to choose a layout for; 0: those that there are
  std::string hardware_file;  // empty: the figures that come with the program
  std::string kernels_file;   // empty: kernels.csv beside hardware_file, if it is there

  bool predicts() const { return auto_layout || !hardware_file.empty(); }
};

struct RunOptions {
  TrainerOptions trainer;  // those of the first rank on every axis
  ParallelSizes parallel;
  std::string topology_file;  // the file that chooses the order of ranks; empty: none
  PrecisionOptions precision;
  DataOptions data;
  std::vector<std::string> sources;  // SourceNames; empty: losses are not told apart
  EvaluationTaskOptions tasks;
  TokenizerOptions tokenizer;
  LoopOptions loop;
  CheckpointOptions checkpoint;
  GenerationOptions generation;
  uint64_t seed = 1234;
  DeviceType device = DeviceType::kCpu;
  int num_threads = 1;      // number of threads of all ranks of a machine together
  bool bind_cores = false;  // whether each rank runs on cores of its own
  GemmOptions gemms;
  // What it chooses depends on the GPU, and is set where that is known.
  AttentionOptions attention;
  bool deterministic = false;  // a run on a GPU has the same bits each time
  RanksOptions ranks;
  ProfileOptions profile;
  PlanningOptions planning;

  // Sets the names of sources, for the trainer too.
  void SetSources(std::vector<std::string> names) {
    trainer.num_sources = static_cast<int64_t>(names.size());
    sources = std::move(names);
  }
  int num_ranks() const {
    return parallel.tensor * parallel.context * parallel.pipeline * parallel.data;
  }
  // The trainer's options of the rank at this place on the pipeline and the data axis.
  TrainerOptions TrainerOf(int stage, int data_rank) const;
};

// Returns "tensor 2 x pipeline 1 x data 4"; with context if it is more than 1, and with the order
// of ranks if it is not the default.
std::string DescribeSizes(const ParallelSizes& sizes);

// Reads the data section alone, since the rest needs the size of the vocabulary that it gives.
TokenizerOptions ToTokenizerOptions(const config::DataConfig& config);
// Reads the checkpoint section alone, which may have to give the model.
CheckpointOptions ToCheckpointOptions(const config::CheckpointConfig& config);
// Reads the parallel section alone: how ranks run is known before any data is read.
RanksOptions ToRanksOptions(const config::ParallelConfig& config);
// Reads what a layout is chosen from, which is known before the layout.
PlanningOptions ToPlanningOptions(const config::PretrainConfig& config);
// Expects a valid configuration with its computed fields set.
RunOptions ToRunOptions(const config::PretrainConfig& config, int64_t vocab_size);

absl::StatusOr<LossScaler> MakeLossScaler(const PrecisionOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_RUN_OPTIONS_H_
