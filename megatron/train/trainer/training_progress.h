// What ranks of a run have alike after a step, besides tensors.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINING_PROGRESS_H_
#define MEGATRON_TRAIN_TRAINER_TRAINING_PROGRESS_H_

#include <cstdint>

#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/lr_scheduler.h"
#include "megatron/optim/pending_update.h"

namespace megatron {

// The progress of training. With the tensors, this is all that a checkpoint needs.
struct TrainingProgress {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  int64_t consumed_train_tokens = 0;  // counted with a curriculum, and 0 without
  int64_t skipped_iterations = 0;     // gradients were not finite
  int64_t nan_iterations = 0;         // skipped ones whose loss was not finite
  // The run and the round of the outer server that the global copy is of; 0 and -1: of none.
  uint64_t server_run = 0;
  int64_t server_round = -1;
};

// The progress, and what else a rank needs besides tensors and the numbers of its update rule to go
// on.
struct CommonState {
  TrainingProgress progress;
  OptimizerParamSchedulerState schedule;
  LossScalerState scaler;
  int64_t applied_steps = 0;
  PendingUpdate pending;
  int64_t evaluated_iteration = -1;  // the last one after which the model was evaluated; -1: none
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINING_PROGRESS_H_
