// Copies of sharded master weights and optimizer states in the memory of other ranks.
//
// Where states are sharded, one rank alone has a shard. With copies, each rank packs its shard at
// the end of a step and sends it to other ranks, as many as there are copies, at best on other
// hosts (copy_ring.h). The two newest generations stay: the older one is whole on all ranks until
// all have the newer one, since an exchange begins after a step that all ranks had to enter. So
// when ranks are lost at any moment, those that are left have one generation of all shards, as long
// as one of the ranks that hold a shard is left.
//
// A shard is kept twice where it is and twice for each copy.
#ifndef MEGATRON_TRAIN_TRAINER_SHARD_COPIES_H_
#define MEGATRON_TRAIN_TRAINER_SHARD_COPIES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/process_group.h"
#include "megatron/optim/packed_states.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"
#include "megatron/train/trainer/copy_ring.h"
#include "megatron/train/trainer/training_progress.h"

namespace megatron {

// How ranks share out states among them.
struct StateShards {
  int count = 1;
  int parts = 1;  // DataRank::parts
  bool by_parts = false;

  static StateShards Of(const ParameterBuffersOptions& options);
  // The rank that has a shard, and the shard of a rank.
  DataRank Rank(int shard) const;
  int ShardOf(const DataRank& data) const {
    return by_parts ? data.rank * data.parts + data.part : data.rank;
  }
};

// A shard as it was at the end of a step.
struct KeptShard {
  int shard = 0;
  CommonState common;
  std::vector<float> numbers;  // those of the update rule
  std::string bytes;           // PackedStates'
};

class ShardCopies {
 public:
  // The states of `buffers`, which must outlive this, are sharded over `shards`. At most as many
  // copies are made as there are other ranks. `host` is a number that ranks of one host have alike.
  // Collective over `shards`, unless the stream is meta.
  ShardCopies(const std::vector<Parameter*>& parameters, const ParameterBuffers* buffers,
              const ProcessGroup& shards, int64_t host, int copies, const Stream& stream,
              MemoryLedger* ledger);

  // Makes a generation of what ranks have now. Collective over `shards`. After an error the
  // generations before are as they were, but for the older one.
  absl::Status Take(const CommonState& common, const std::vector<float>& numbers,
                    const Stream& stream);
  // The newest generation, which is of the iteration of `common`, has this state.
  void Update(const CommonState& common);
  // The iteration of the newest generation; -1: there is none.
  int64_t iteration() const;
  // Returns a copy of all that this rank has, for the time after the ranks of its world.
  std::vector<KeptShard> Keep() const;

 private:
  struct Generation {
    std::optional<CommonState> common;  // none: it is not whole
    std::vector<float> numbers;
    Buffer memory;  // this rank's shard, and then the copies of others by their number
  };

  // The number within the group of the rank whose copy of that number this one keeps; 0: itself.
  int KeptBy(int copy) const {
    return copy == 0 ? shards_.rank() : ring_.KeptBy(shards_.rank(), copy);
  }
  // The shard of a rank of the group.
  int ShardOf(int rank) const;
  Tensor Place(const Generation& generation, int copy) const;

  const ParameterBuffers& buffers_;
  const ProcessGroup shards_;
  const CopyRing ring_;
  const StateShards sharing_;
  std::vector<PackedStates> packed_;  // by rank of the group
  int64_t most_bytes_ = 0;            // those of the largest shard
  std::array<Generation, 2> generations_;
  int newest_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_SHARD_COPIES_H_
