// The memory of a micro-batch that is yet to be packed: the size of the largest, and the places of
// its tensors.
#ifndef MEGATRON_TRAIN_BATCHES_MICRO_BATCH_ROOM_H_
#define MEGATRON_TRAIN_BATCHES_MICRO_BATCH_ROOM_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/tensor/memory.h"

namespace megatron {

// The largest contents of a micro-batch.
struct MicroBatchRoom {
  int64_t tokens = 0;
  int64_t sequences = 0;
  bool has_classes = false;         // token types and classes of sequences
  bool has_sample_numbers = false;  // samples are numbered
  int64_t encoder_tokens = 0;       // 0: there are neither an encoder nor spans
  int64_t mtp_depths = 0;           // 0: there is no multi-token prediction
};

// The part of it that is used.
struct MicroBatchSize {
  int64_t tokens = 0, sequences = 0, encoder_tokens = 0, spans = 0;
};
MicroBatchSize SizeOf(const MicroBatch& batch);

// The tensors lie in `memory` from byte `offset` on, a multiple of Buffer::kAlignment.
MicroBatch PlaceMicroBatch(const MicroBatchRoom& room, const Buffer& memory, int64_t offset);
int64_t MicroBatchBytes(const MicroBatchRoom& room);

// Cuts the tensors to the part that is used.
void Shorten(const MicroBatchSize& size, MicroBatch* batch);

// Calls the function for every tensor that is there.
void ForEachTensor(MicroBatch* batch, absl::FunctionRef<void(Tensor*)> fn);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_MICRO_BATCH_ROOM_H_
