// The state of a rank between two steps, kept in memory while the ranks of a run change.
//
// Ranks can go on from memory where those that are left have all of the state: copies of it, or
// with sharded states copies of shards (shard_copies.h). No rank has a state of its own then
// (experts, islands, FP8's history, errors of compression, signs). Others continue from a
// checkpoint.
#ifndef MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_
#define MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/train/trainer/shard_copies.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

struct KeptState {
  // The part of the model that it is of.
  int tensor_rank = 0, pipeline_rank = 0;
  StateShards sharing;  // one shard: states were not sharded
  // This rank's shard and those that it has copies of, of one iteration or of several.
  std::vector<KeptShard> shards;
};

// Copies the trainer's state. Nothing where ranks can't go on from memory.
std::optional<KeptState> KeepState(Trainer& trainer, int64_t evaluated_iteration);

// The state that ranks go on from.
struct StateInMemory {
  int64_t iteration = 0;
  int shards = 1;  // those that states were cut into
};

// Gives each rank of the trainer's world that state: at least one of the ranks with the same part
// of the model has kept each shard, and sends it to the others. `mine` is what this rank has kept,
// and stays as it is; null: nothing. Returns the last iteration after which all of them had
// evaluated. Collective over the trainer's world. After an error the trainer's contents are
// undefined.
absl::StatusOr<int64_t> RestoreKeptState(KeptState* mine, const StateInMemory& state,
                                         Trainer* trainer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_KEPT_STATE_H_
