#ifndef MEGATRON_TRAIN_PREFLIGHT_OPEN_CHECKPOINT_H_
#define MEGATRON_TRAIN_PREFLIGHT_OPEN_CHECKPOINT_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/local/peer_files.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_locations.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {

// The start of a run: a checkpoint, or new weights.
struct StartingPoint {
  // The files of other machines that `checkpoint` reads, if it is a local one; else null.
  std::shared_ptr<PeerFiles> peer_files;
  std::unique_ptr<CheckpointReader> checkpoint;  // null: the beginning
  Restore restore = Restore::kEverything;
  bool is_own = false;  // whether this run has saved it
};

// Opens the checkpoint that a run starts from. What the run has saved itself comes before what it
// was started from, so that the same command continues it, and is taken with the optimizer's state
// in any case. `warn` hears what is wrong with newer checkpoints.
//
// Errors carry kExitConfig where checkpoint.load has none, kExitCorruptCheckpoint where it is
// damaged, and kExitIo where it can't be looked for.
absl::StatusOr<StartingPoint> OpenCheckpoint(FileSystem& fs, const CheckpointOptions& options,
                                             absl::FunctionRef<void(const std::string&)> warn);

// Returns an error with kExitConfig if the run would silently go on otherwise than the
// checkpoint's: with another global batch, which nobody has written, to a length in samples that
// other batches have begun, or with samples in another order, which data.data_sharding has for
// other ranks or micro-batches.
absl::Status CheckBatches(const CheckpointReader& checkpoint, const config::PretrainConfig& config,
                          const ConfigLocations& written);

// Tells `warn` at which iteration the training data end, which have `num_samples` samples, if that
// is before the run that continues the checkpoint does. They are drawn for iterations of its own
// batches, and those before may have taken more. Returns an error with kExitConfig if not one
// iteration is left.
absl::Status CheckSamplesLeft(const CheckpointReader& checkpoint,
                              const config::PretrainConfig& config, int64_t num_samples,
                              absl::FunctionRef<void(const std::string&)> warn);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_OPEN_CHECKPOINT_H_
