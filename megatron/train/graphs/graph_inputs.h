// The memory of the micro-batches that a stage with CUDA graphs works on. A graph reads the same
// addresses with every launch, so each micro-batch in flight is copied to the place of its slot.
#ifndef MEGATRON_TRAIN_GRAPHS_GRAPH_INPUTS_H_
#define MEGATRON_TRAIN_GRAPHS_GRAPH_INPUTS_H_

#include <cstdint>
#include <vector>

#include "megatron/layers/micro_batch.h"
#include "megatron/models/stage_memory.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// Returns the bytes of the places for all micro-batches that the stage holds at once, each of which
// has at most this number of bytes.
int64_t GraphInputBytes(const std::vector<SlotSizes>& slots, int64_t micro_batch_bytes);

class GraphInputs {
 public:
  // `slots` has an entry for each chunk.
  GraphInputs(const std::vector<SlotSizes>& slots, int64_t micro_batch_bytes, Device device,
              MemoryLedger* ledger);

  // Returns the same micro-batch in a slot's place. Its tensors lie in `block` (uint8).
  MicroBatch At(int chunk, int slot, const MicroBatch& batch, const Tensor& block) const;
  // Copies the micro-batch's block to the slot's place.
  void Copy(const Stream& stream, const Tensor& block, int chunk, int slot) const;

 private:
  Tensor PlaceOf(int chunk, int slot) const;

  std::vector<int> first_place_;  // each chunk's first place
  int64_t bytes_of_one_;
  Buffer buffer_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_GRAPHS_GRAPH_INPUTS_H_
