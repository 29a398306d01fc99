// ActivationStore: host memory for what the first layers of a stage keep for backward.
//
//   ActivationStore::Slot* slot = store->At(chunk, slot_number);
//   Arena* window = slot->Begin(i);   // forward: tensors are taken from it
//   slot->Acquire(i);                 //   before the first of them is written
//   ...                               //   the segment's forward
//   slot->Leave(i);                   //   the copy to the host begins
//   slot->StartBackward();            // backward: the last segments come first, unless they have
//                                     //   not left their windows since
//   slot->Acquire(i);                 //   the tensors are at the same addresses again
//   ...                               //   the segment's backward
//   slot->Release(i);                 //   the next segment may come into the window
//
// A *segment* is what leaves and comes back at once: all that a layer keeps or, of layers that are
// recomputed together, their input. A *window* is memory of the device in which a segment lies
// while the device computes with it; segment i has window i % windows in every micro-batch, so that
// its tensors have the same addresses in both passes. Copies are made on a stream of the store's
// own: that out of a window ends before the window is used again, and that into it begins when the
// last segment there has been used.
//
// On the meta device nothing is copied, and HighWater() returns the memory that a real store needs.
//
// Threads: that of the stream.
#ifndef MEGATRON_MODELS_ACTIVATION_STORE_H_
#define MEGATRON_MODELS_ACTIVATION_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct OffloadSizes {
  // With two, a layer's forward would wait until the layer before it had left.
  static constexpr int kMostWindows = 3;

  // The most bytes of each segment of each chunk, the segments in the order of the layers.
  std::vector<std::vector<int64_t>> segments;
  int64_t window = 0;  // bytes of one window

  // Returns the number of windows: one for the segment at work, one for that which leaves or will
  // be next, and one for that behind it.
  int num_windows() const;
  int64_t window_bytes() const { return num_windows() * window; }
  // Returns the host's bytes for one micro-batch of the chunk.
  int64_t BytesOfSlot(int chunk) const;
};

class ActivationStore {
 public:
  class Slot {
   public:
    // Empties the segment's window and returns it. What is taken from it may be written after
    // Acquire(). It has no host arena; one that the caller gives it keeps its pieces, and is the
    // window's until the next Begin().
    Arena* Begin(int64_t segment);
    // The stream's operations from now on find the window free or, after StartBackward(), what the
    // segment kept.
    void Acquire(int64_t segment);
    // Ends the segment's forward: the window's tensors are read by what follows on the stream until
    // the window is acquired again, and written by nothing.
    void Leave(int64_t segment);
    // Begins to bring back the last segments, as many as there are windows and but for those whose
    // tensors are still in theirs.
    void StartBackward();
    // Ends the segment's backward.
    void Release(int64_t segment);

   private:
    friend class ActivationStore;
    // The place of a segment in host memory.
    struct Place {
      int64_t offset = 0;
      int64_t bytes = 0;  // number of bytes that the segment has kept
    };

    void Fetch(int64_t segment);
    // Returns whether the segment's tensors have not left its window since its forward pass.
    bool IsInWindow(int64_t segment) const;

    ActivationStore* store_ = nullptr;
    int chunk_ = 0;
    PinnedBuffer host_;
    std::vector<Place> places_;  // one entry a segment; none on the meta device
  };

  // `slots` are the numbers of micro-batches in flight, by chunk. On the meta device `sizes` are
  // not read. Fails where the system locks no more memory.
  static absl::StatusOr<std::unique_ptr<ActivationStore>> Create(const OffloadSizes& sizes,
                                                                 const std::vector<int>& slots,
                                                                 const Stream& stream,
                                                                 MemoryLedger* ledger);
  // Waits for the copies.
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  // Returns the segments of one micro-batch of a chunk.
  Slot* At(int chunk, int slot) { return &slots_[chunk][slot]; }

  // Returns the most that was used so far.
  OffloadSizes HighWater() const;
  // The windows, for reports of what lies in them.
  std::vector<const Arena*> windows() const;

 private:
  struct Window {
    Arena arena;
    Tensor bytes;  // all of the arena's memory; empty on the meta device
    // Points of the store's stream, behind the window's last copy, and of the device's, behind its
    // last use; null on the meta device.
    std::unique_ptr<CudaEvent> copied, used;
    // The segment whose tensors have not left the window since its forward pass; null: there is
    // none.
    const Slot* slot = nullptr;
    int64_t segment = 0;
  };

  explicit ActivationStore(const Stream& stream) : stream_(stream), copy_stream_(stream) {}
  Window& WindowOf(int64_t segment) {
    return windows_[static_cast<size_t>(segment) % windows_.size()];
  }
  // Counts what a segment keeps, on the meta device.
  void Count(int chunk, int64_t segment, int64_t bytes);
  // Copies on the store's stream, behind all that the device's stream has to do so far.
  void Copy(const char* name, const Tensor& in, const Tensor& out, Window* window);

  const Stream stream_;
  std::unique_ptr<CudaStream> copies_;  // null on the meta device
  Stream copy_stream_;                  // a stream on copies_
  std::vector<Window> windows_;
  std::vector<std::vector<Slot>> slots_;         // indexed by chunk and slot
  std::vector<std::vector<int64_t>> most_kept_;  // on the meta device, as OffloadSizes::segments
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_ACTIVATION_STORE_H_
