// Between a trainer and its checkpoints: what is saved under which name, and how it comes back.
//
// Weights have Megatron's names, optimizer state Megatron's prefixes:
// optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.NAME.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_
#define MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// What identifies a run, and the configuration that it was saved under, for those who read the
// checkpoint later.
struct RunDescription {
  std::string identity;     // RunIdentity()
  std::string config_text;  // EffectiveConfigText()
};

// The checkpoint that a user means by a directory: that of one iteration, or the latest of a run's.
absl::StatusOr<FoundCheckpoint> LocateCheckpoint(FileSystem& fs, const std::string& directory);

// This rank's part of the checkpoint; all ranks together save each element once. The tensors point
// into the trainer.
CheckpointState MakeCheckpointState(Trainer& trainer, const RunDescription& run);

enum class Restore {
  kEverything,
  kWithoutOptimizer,  // weights, progress and schedule; moments start at zero
  kWeights,           // a new run from these weights, in whatever precision they were trained
};
// All ranks call it; each reads what it holds, whatever layout saved it. kFailedPrecondition,
// saying what differs, where the checkpoint is of another model or, unless only weights are wanted,
// of another run. After an error the trainer's contents are undefined.
absl::Status RestoreCheckpoint(const CheckpointReader& reader, Restore what,
                               const RunDescription& run, Trainer* trainer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINING_CHECKPOINT_H_
