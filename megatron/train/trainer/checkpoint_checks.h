// Whether a checkpoint can be loaded into a trainer. Errors are kFailedPrecondition and say what
// differs.
#ifndef MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_
#define MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// Returns an error unless the checkpoint has the weights of this model and no others. With
// `only_weights`, low-rank adapters and the head of a classifier may be missing, the head may have
// another number of classes, and the heads that a classifier has not may be there. With `is_dense`
// it has those of the dense model that this one begins from (upcycling.h). Returns the names of the
// parameters that are missing, or have rows for other classes.
absl::StatusOr<std::vector<std::string>> CheckSameModel(const CheckpointReader& reader,
                                                        bool only_weights, bool is_dense,
                                                        Trainer& trainer);

// Returns an error where the checkpoint has remainders of main weights and this run keeps them
// whole, or the other way round and this run loads the optimizer's states (`with_states`).
absl::Status CheckRemainders(const CheckpointReader& reader, bool with_states, Trainer& trainer);

// Returns an error where the checkpoint has states of another optimizer, of another number of
// islands or of other types.
absl::Status CheckSameOptimizer(const CheckpointReader& reader, Trainer& trainer);

// Returns an error unless the checkpoint is of the run with this identity (RunIdentity()), or was
// made of one of another program's (kSavedBy) with this model.
absl::Status CheckSameRun(const CheckpointReader& reader, const std::string& identity);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_CHECKPOINT_CHECKS_H_
