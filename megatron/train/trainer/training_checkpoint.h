// Saves and restores a trainer.
//
// Weights have Megatron's names. Master weights are optimizer.state.fp32_param.NAME, and a state of
// the update rule is optimizer.state.STATE.NAME, with the rule's own name for it: exp_avg and
// exp_avg_sq for AdamW, as in Megatron, momentum_buffer for SGD. The history of FP8's delayed
// scales is optimizer.state.fp8_amax_history.NAME for the layer whose weight is NAME.
//
// In a run with islands (optim/outer_optimizer.h) the weights and optimizer.state.fp32_param.NAME
// are the global copy, so that whatever reads weights reads those. Its momentum is
// optimizer.state.outer_momentum.NAME. An island's own master weights and states have its number in
// their names: optimizer.state.island0.fp32_param.NAME. A run with as many islands continues with
// the same bits, whatever its layout within an island.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_
#define MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// What a checkpoint records of the run that saved it.
struct RunDescription {
  std::string identity;         // RunIdentity()
  std::string config_text;      // EffectiveConfigText()
  std::string kernels;          // DescribeKernels() (preflight/open_devices.h); empty on the CPU
  std::string instruction_set;  // as "avx512"; empty on devices other than the CPU
  // With train.phase_transition_iterations, these iterations, and the fingerprint of this start's
  // data, which is no part of the identity then.
  absl::btree_set<int64_t> phase_transitions;
  std::string phase_data;
  uint64_t seed = 0;  // of initial weights
};

// Finds the checkpoint in a directory that a user gave: the directory of one iteration, or that of
// a run, whose latest checkpoint is taken.
absl::StatusOr<FoundCheckpoint> LocateCheckpoint(FileSystem& fs, const std::string& directory);

// Returns this rank's part of the checkpoint; all ranks together save each element once. The
// tensors are views of the trainer's memory, or are read from its file when they are saved.
CheckpointState MakeCheckpointState(Trainer& trainer, const RunDescription& run);

enum class Restore {
  kEverything,
  kWithoutOptimizer,  // weights, progress and schedule; optimizer states start at zero
  kWeights,           // a new run from these weights, in whatever precision they were trained
  kDenseWeights,      // a new run of experts from a dense model's weights (upcycling.h)
};

// Returns whether a new run begins.
inline bool BeginsRun(Restore what) {
  return what == Restore::kWeights || what == Restore::kDenseWeights;
}

// Returns a warning if the CPU that saved the checkpoint computed with another instruction set than
// this run, so that bits will differ from those of a run that was not stopped; else an empty
// string.
std::string OtherInstructionSet(const CheckpointReader& reader, const RunDescription& run);

// All ranks call it; each reads its part, whatever layout saved the checkpoint. Returns
// kFailedPrecondition with all differences if the checkpoint is of another model or, unless only
// weights are wanted, of another run. After an error the trainer's contents are undefined. Appends
// to *warnings what of the checkpoint is of no use to this run, or is missing in it: texts that are
// the same on all ranks. Adapters that the checkpoint lacks, which only kWeights allows, stay as
// they are.
absl::Status RestoreCheckpoint(const CheckpointReader& reader, Restore what,
                               const RunDescription& run, Trainer* trainer,
                               std::vector<std::string>* warnings);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_
