// The state of a rank between two steps, kept in memory while the ranks of a run change.
//
// Ranks can go on from memory only where copies have all of their state: nothing is sharded over
// data-parallel ranks, and no rank has a state of its own (experts, islands, FP8's history, errors
// of compression, signs). Others continue from a checkpoint.
#ifndef MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_
#define MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/lr_scheduler.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

struct KeptState {
  // The part of the model that it is of.
  int tensor_rank = 0, pipeline_rank = 0;

  // What ranks with other parts of the model have alike.
  struct Common {
    TrainingProgress progress;
    OptimizerParamSchedulerState schedule;
    LossScalerState scaler;
    int64_t applied_steps = 0;
    int64_t evaluated_iteration = -1;  // the last one after which the model was evaluated
  };
  Common common;
  // The bytes of each master weight and optimizer state, and the rule's numbers.
  std::vector<std::string> tensors;
  std::vector<float> numbers;

  int64_t iteration() const { return common.progress.iteration; }
};

// Copies the trainer's state. Nothing where ranks can't go on from memory.
std::optional<KeptState> KeepState(Trainer& trainer, int64_t evaluated_iteration);

// Gives each rank of the trainer's world the state after `iteration` steps, which at least one of
// its copies has kept and sends to the others. `mine` is what this rank has kept; null: nothing.
// Returns the last iteration after which all of them had evaluated. Collective over the trainer's
// world. After an error the trainer's contents are undefined.
absl::StatusOr<int64_t> RestoreKeptState(const KeptState* mine, int64_t iteration,
                                         Trainer* trainer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_
