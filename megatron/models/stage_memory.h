// The arenas that a pipeline stage works in.
#ifndef MEGATRON_MODELS_STAGE_MEMORY_H_
#define MEGATRON_MODELS_STAGE_MEMORY_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "megatron/layers/host_copies.h"
#include "megatron/models/activation_store.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// The slots of one chunk of a stage.
struct SlotSizes {
  int count = 1;      // number of micro-batches in flight
  int64_t bytes = 0;  // number of bytes that each of them keeps
  int64_t host = 0;   // number of bytes that each of them keeps in its host arena
};

struct StageMemorySizes {
  std::vector<SlotSizes> slots = {SlotSizes()};  // one entry a chunk: kept for backward
  std::vector<SlotSizes> deferred = {{0, 0}};    // one entry a chunk: kept for a deferred part
  int64_t recompute = 0;                         // kept by recomputed layers for their backward
  int64_t scratch = 0;
  int64_t host_recompute = 0, host_scratch = 0;  // those of the host arenas
  int64_t edges = 0;                             // received from neighbouring stages
  OffloadSizes offload;                          // what layers keep in host memory
  // Memory of the micro-batches that CUDA graphs read. It is not the stage's own.
  int64_t graph_inputs = 0;
  // Memory of generated text: the cache of keys and values, tokens, logits. It is not the stage's
  // own, and no part of total(): it is taken when the training is done.
  int64_t generation = 0;
  // Memory of sharded weights and gradients while they are whole. It is not the stage's own.
  int64_t whole_weights = 0, whole_gradients = 0;

  int64_t saved() const { return Sum(slots); }
  int64_t put_off() const { return Sum(deferred); }
  // Returns the bytes of the device.
  int64_t total() const {
    return saved() + put_off() + recompute + scratch + edges + offload.window_bytes() +
           graph_inputs + whole_weights + whole_gradients;
  }
  // Returns the bytes of host memory.
  int64_t host() const;

 private:
  static int64_t Sum(const std::vector<SlotSizes>& chunks);
};

struct StageMemory {
  StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger);

  // Makes the store for layers that keep in host memory what backward needs, as many as
  // there are slots. `stream` is that of the arenas' device. Fails where the system locks no more
  // memory.
  absl::Status MakeStore(const StageMemorySizes& sizes, const Stream& stream, MemoryLedger* ledger);

  // Gives the arenas of slots, of recomputed layers and of temporary memory host arenas, for layers
  // that keep tensors of all tokens there. Deferred parts have none. Fails where the system locks
  // no more memory.
  absl::Status MakeHostArenas(const StageMemorySizes& sizes, const Stream& stream,
                              MemoryLedger* ledger);

  // The most that was used so far: on the meta device, the sizes that a real one needs.
  StageMemorySizes HighWater() const;

  using Slots = std::vector<std::vector<std::unique_ptr<Arena>>>;  // indexed by chunk and slot
  Slots slots, deferred;
  Arena recompute, scratch, edges;
  std::unique_ptr<ActivationStore> store;  // null: no layer is kept in host memory
  struct HostArena {
    PinnedBuffer memory;
    std::unique_ptr<Arena> arena;
  };
  std::vector<HostArena> host_arenas;
  std::unique_ptr<HostCopies> host_copies;  // null: there are no host arenas
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_MEMORY_H_
