// WeightReader: brings the weights of bucket groups from the file of a ParameterBuffers to the
// device, and reads them ahead.
//
//   reader->ReadAhead(next);               // while the device computes
//   ...
//   reader->Bring(bucket, place, stream);  // brings `next`: waits for the file, enqueues the
//   copies
//
// Page-locked memory has the weights of the three bucket groups that were used last. They are read
// once while they are there, unless the file is written meanwhile.
//
// After an error of the file, which ParameterBuffers::status() tells, what it brings is undefined.
//
// A WeightReader is used by the thread that uses the file.
#ifndef MEGATRON_OPTIM_WEIGHT_READER_H_
#define MEGATRON_OPTIM_WEIGHT_READER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class WeightReader {
 public:
  // The buffers, which have a file of weights, must outlive it. The ledger, which may be null, has
  // the memory as "host/weights read ahead". Fails where the system locks no more memory.
  static absl::StatusOr<std::unique_ptr<WeightReader>> Create(const ParameterBuffers& buffers,
                                                              const Stream& stream,
                                                              MemoryLedger* ledger);
  ~WeightReader();

  // Starts to read the bucket group, if there is such a one whose weights are not there.
  void ReadAhead(int bucket_group);
  // Copies the weights of the bucket that this rank stores to `place`, in the order of the stream.
  void Bring(const Bucket& bucket, const Tensor& place, const Stream& stream);

 private:
  static constexpr int kSlots = 3;
  // Elements of a bucket that are of one extent.
  struct Piece {
    StateFile::Cover cover;
    FlatRange range;  // counted from the first that this rank stores
    int64_t at = 0;   // the place of their bytes in a slot
  };
  struct Slot {
    int bucket_group = -1;       // -1: none
    int64_t writing_passes = 0;  // those of the file before it was read
    int64_t used = 0;            // the number of the last use
    std::vector<std::optional<int64_t>> reading;
    std::unique_ptr<CudaEvent> sent;  // behind the last copy from it
  };

  explicit WeightReader(const ParameterBuffers& buffers);
  // Returns the slot that has the bucket group, or is reading it from now on.
  Slot& SlotOf(int bucket_group);
  void FinishReading(Slot* slot);
  // The place of a byte of a slot in memory_.
  int64_t Offset(const Slot& slot, int64_t at) const {
    return aligned_ + (&slot - slots_.data()) * slot_bytes_ + at;
  }

  const ParameterBuffers& buffers_;
  StateFile* const file_;
  std::vector<std::vector<int>> buckets_of_;  // by bucket group
  std::vector<std::vector<Piece>> pieces_;    // by bucket
  int64_t slot_bytes_ = 0;
  int64_t aligned_ = 0;  // the first byte of memory_ at an aligned address
  int64_t uses_ = 0;
  PinnedBuffer memory_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_WEIGHT_READER_H_
