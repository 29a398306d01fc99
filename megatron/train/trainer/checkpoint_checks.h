// Whether a checkpoint can be loaded into a trainer. Errors are kFailedPrecondition and say what
// differs.
#ifndef MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_
#define MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// Returns an error unless the checkpoint has the weights of this model and no others. With
// `without_adapters` those of low-rank adapters may be missing.
absl::Status CheckSameModel(const CheckpointReader& reader, bool without_adapters,
                            Trainer& trainer);

// Returns an error where the checkpoint has remainders of main weights and this run keeps them
// whole, or the other way round and this run loads the optimizer's states (`with_states`).
absl::Status CheckRemainders(const CheckpointReader& reader, bool with_states, Trainer& trainer);

// Returns an error where the checkpoint has states of another optimizer, of another number of
// islands or of other types.
absl::Status CheckSameOptimizer(const CheckpointReader& reader, Trainer& trainer);

// Returns an error unless the checkpoint is of the run with this identity (RunIdentity()).
absl::Status CheckSameRun(const CheckpointReader& reader, const std::string& identity);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_
