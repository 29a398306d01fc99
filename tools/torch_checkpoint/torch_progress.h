// How far a run of Megatron-LM or Megatron-DeepSpeed had come when it saved a checkpoint.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_PROGRESS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_PROGRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/optim/loss_scaler.h"
#include "tools/torch_checkpoint/torch_file.h"

namespace megatron {

struct TorchProgress {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  int64_t schedule_steps = 0;  // of the learning rate's schedule, in samples
  int64_t applied_steps = 0;   // Adam's number of updates
  LossScalerState scaler;
};

// Reads what Megatron-LM's common.pt says, or the object in place of it, and `optimizers`, files of
// torch.save that the checkpoint has of optimizers besides (dp_reshardable). With `is_fp16` the
// state of the loss scale must be there. kDataLoss names what is missing, is no number or is
// negative, and parameters with different numbers of updates.
absl::StatusOr<TorchProgress> MegatronProgress(const TorchFile& common,
                                               const std::vector<std::string>& optimizers,
                                               bool is_fp16);

// The same of a universal checkpoint's mp_rank_00_model_states.pt, and of the steps in the files of
// `zero`, a folder: those of the parameters and optimizer_state.pt.
absl::StatusOr<TorchProgress> UniversalProgress(const TorchFile& states, const std::string& zero,
                                                bool is_fp16);

// Gives the checkpoint the values of a run by AdamW that has come so far.
void SetProgress(const TorchProgress& progress, CheckpointState* state);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_PROGRESS_H_
