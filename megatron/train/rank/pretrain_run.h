// PretrainRun: the inputs of a run that the ranks of a process share.
#ifndef MEGATRON_TRAIN_RANK_PRETRAIN_RUN_H_
#define MEGATRON_TRAIN_RANK_PRETRAIN_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/file_system.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/attention/choose_attention.h"
#include "megatron/train/command_line/user_commands.h"
#include "megatron/train/preflight/device_links.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/rank/device_calls.h"
#include "megatron/train/rank/kept_rank.h"
#include "megatron/train/trainer/kept_state.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {

// How the user has started the run.
struct UserCall {
  UserCommands commands;
  std::vector<std::string> arguments;  // flags that start the same run
  bool has_launcher = false;           // whether somebody else's program has started the ranks
};

// A piece of work that a rank is about to begin.
struct PieceOfWork {
  const ProcessGroup& world;  // all ranks; world.rank() is this one
  int64_t iteration;          // counted from 1; 0 before the first
  Phase phase;
  ParameterBuffers* buffers;  // the rank's weights and gradients; null before there are any
};

// A function that is called for each piece on the thread that does it, so that a program can watch
// its ranks.
using PieceListener = std::function<void(const PieceOfWork&)>;

// The inputs that the ranks of a process share; none of them changes while they run.
struct PretrainRun {
  FileSystem* fs = nullptr;
  TrainingRun training;
  RunPlan plan;
  std::string rank_order;           // with a topology file: the order taken, and why
  std::string offload;              // with cpu_offloading_auto: the layers that leave, and why
  std::vector<std::string> layout;  // with train.auto_layout: lines on what was chosen, and why
  std::unique_ptr<Tokenizer> tokenizer;
  StartingPoint start;
  // Set where the run goes on from the memory of its ranks, and not from `start`.
  std::optional<StateInMemory> state_in_memory;
  KeptRank* kept = nullptr;  // this process's part of it, which the rank takes over
  int threads_per_rank = 1;
  // This process's rank on its machine; unset when ranks are threads.
  std::optional<int> local_rank;
  int host = 0;  // a number that ranks of one machine have alike
  AttentionChoice attention;
  std::string products;  // DescribeProducts() (preflight/open_devices.h)
  DeviceLinks links;     // the connections between the GPUs of the ranks
  DeviceCalls* device_calls = nullptr;
  PieceListener on_piece;  // null: nobody listens
  UserCall user;

  const RunOptions& options() const { return training.options; }
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_PRETRAIN_RUN_H_
