#include "megatron/train/graphs/graph_inputs.h"

#include "glog/logging.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/train/batches/micro_batch_room.h"

namespace megatron {

int64_t GraphInputBytes(const std::vector<SlotSizes>& slots, int64_t micro_batch_bytes) {
  int64_t count = 0;
  for (const SlotSizes& chunk : slots) count += chunk.count;
  return count * micro_batch_bytes;
}

GraphInputs::GraphInputs(const std::vector<SlotSizes>& slots, int64_t micro_batch_bytes,
                         Device device, MemoryLedger* ledger)
    : bytes_of_one_(micro_batch_bytes),
      buffer_(device, GraphInputBytes(slots, micro_batch_bytes), "batches/graphs", ledger) {
  int place = 0;
  for (const SlotSizes& chunk : slots) {
    first_place_.push_back(place);
    place += chunk.count;
  }
}

Tensor GraphInputs::PlaceOf(int chunk, int slot) const {
  return buffer_.At((first_place_[chunk] + slot) * bytes_of_one_, DType::kUInt8, {bytes_of_one_});
}

MicroBatch GraphInputs::At(int chunk, int slot, const MicroBatch& batch,
                           const Tensor& block) const {
  char* const place = static_cast<char*>(PlaceOf(chunk, slot).raw());
  MicroBatch placed = batch;
  ForEachTensor(&placed, [&](Tensor* tensor) {
    const int64_t offset =
        static_cast<const char*>(tensor->raw()) - static_cast<const char*>(block.raw());
    CHECK(offset >= 0 && offset + tensor->bytes() <= block.bytes()) << *tensor << " at " << offset;
    *tensor = tensor->Moved(place + offset, tensor->device());
  });
  return placed;
}

void GraphInputs::Copy(const Stream& stream, const Tensor& block, int chunk, int slot) const {
  Transport(stream, block, PlaceOf(chunk, slot));
}

}  // namespace megatron
