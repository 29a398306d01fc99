// StateFile: master weights and optimizer states, or the model's weights, in a file in place of
// memory, as in ZeRO-Infinity (S. Rajbhandari et al., arXiv 2104.07857).
//
// The file holds some tensors (the masters, exp_avg and so on) with the same number of elements.
// These are cut into *extents*. All that the file has of an extent lies together, so that an update
// reads it at once, and writes it at once.
//
//   file.StartPass(StateFile::Access::kUpdate);
//   for (int64_t extent = 0; extent < file.num_extents(); ++extent) {
//     if (!file.Enter(extent).ok()) break;
//     ... change file.Elements(tensor, begin, end), elements of this extent
//   }
//   MEGATRON_RETURN_IF_ERROR(file.EndPass());   // called after errors too
//
// While the caller works on an extent, the one behind it is read and the one before it is written.
//
// Errors name the file and the offset. The first one stays: nothing is read or written after it,
// every call returns it, and what the file has is undefined. On the meta device everything works,
// without memory or a file.
//
// A StateFile is used by one thread at a time, but that status() may be called meanwhile and that,
// while no pass is under way, one thread may call Fetch and Read beside another that calls
// StartFetch and FinishFetch.
#ifndef MEGATRON_OPTIM_STATE_FILE_H_
#define MEGATRON_OPTIM_STATE_FILE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/block_file.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class StateFile {
 public:
  static constexpr int64_t kExtentElements = int64_t{1} << 20;

  // What a pass does with extents. kWrite begins each with zeros in place of what the file has.
  enum class Access { kRead, kWrite, kUpdate };

  // Takes memory for the extents that are on their way, on the CPU or the meta device. `dtypes` are
  // those of the tensors, of which there is one at least. The ledger, which may be null, has the
  // memory as `name`.
  StateFile(std::vector<DType> dtypes, int64_t elements, int64_t extent_elements, Device device,
            MemoryLedger* ledger, const std::string& name = "host/optimizer extents");
  ~StateFile();

  // The bytes of the file.
  int64_t bytes() const { return bytes_; }

  // Makes the file, whose elements are zeros. Nothing may be at `path`. It has no name afterwards.
  absl::Status Open(const std::string& path);
  // The same with a file of bytes() that is there.
  void Open(std::unique_ptr<BlockFile> file);
  // How the file is reached, for a line at the start.
  std::string method() const;

  int64_t num_extents() const { return (elements_ + extent_elements_ - 1) / extent_elements_; }
  int64_t extent_of(int64_t element) const { return element / extent_elements_; }
  // The end of the extent that holds the element.
  int64_t ExtentEnd(int64_t element) const;

  // A pass goes through the extents from the first on, and may end before the last.
  void StartPass(Access access);
  // Brings an extent into memory, which is the one of the last call or lies behind it.
  absl::Status Enter(int64_t extent);
  absl::Status EndPass();
  bool in_pass() const { return in_pass_; }

  // Elements [begin, end) of a tensor, which are of the extent that was entered.
  Tensor Elements(size_t tensor, int64_t begin, int64_t end) const;

  // Reads elements [begin, end) of a tensor, which are of one extent. What is returned stays until
  // the next call. No pass is under way.
  absl::StatusOr<Tensor> Fetch(size_t tensor, int64_t begin, int64_t end);
  // Fills `out` with the elements from `begin` on. No pass is under way.
  absl::Status Read(size_t tensor, int64_t begin, const Tensor& out);

  // Some elements of one extent as bytes of the file that may be read, and the place of the first
  // element among these.
  struct Cover {
    int64_t offset = 0, bytes = 0, first = 0;
  };
  Cover CoverOf(size_t tensor, int64_t begin, int64_t end) const;
  // Starts to read the bytes into `memory`, whose address is aligned. No pass is under way. A pass
  // that writes them before FinishFetch leaves them undefined.
  std::optional<int64_t> StartFetch(const Cover& cover, char* memory);
  // Waits for what StartFetch returned, and forgets it. status() tells whether it was read.
  void FinishFetch(std::optional<int64_t>* transfer) { Finish(transfer); }
  // The number of passes so far that write.
  int64_t writing_passes() const { return writing_passes_; }

  absl::Status status() const;

 private:
  // One extent is read, one is worked on, and one is written.
  static constexpr int kSlots = 3;
  // An extent in memory or on its way.
  struct Slot {
    char* memory = nullptr;
    std::optional<int64_t> reading, writing;  // transfers
  };

  int64_t SizeOfExtent(int64_t extent) const;  // number of its elements
  // The offset of a tensor within an extent that has so many elements; behind the last tensor, the
  // bytes of the extent.
  int64_t TensorOffset(size_t tensor, int64_t extent_elements) const;
  Slot& SlotOf(int64_t extent) { return slots_[extent % slots_.size()]; }
  absl::Span<char> MemoryOf(int64_t extent);
  void StartRead(int64_t extent);
  void StartWrite(int64_t extent);
  // Waits for the transfer, if there is one.
  void Finish(std::optional<int64_t>* transfer);
  void FinishAll();
  void Fail(const absl::Status& status);

  const std::vector<DType> dtypes_;
  const int64_t elements_, extent_elements_;
  const int64_t extent_bytes_;  // those of all but the last extent
  const int64_t bytes_;
  const Device device_;
  Buffer memory_;
  std::array<Slot, kSlots> slots_;
  std::unique_ptr<BlockFile> file_;  // its transfers end before their memory does

  bool in_pass_ = false;
  Access access_ = Access::kRead;
  int64_t entered_ = -1;  // extent
  int64_t writing_passes_ = 0;

  std::mutex transfers_mutex_;  // guards calls of *file_
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_STATE_FILE_H_
