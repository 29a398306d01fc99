// HostUpdate: updates of elements of which gradients and weights, or weights alone, lie on a
// device, and masters and states in host memory.
//
//   host_update.Run(parts, meanwhile, [&](size_t i, const HostPart& part, const Stream& host) {
//     ...
//   });
//
// The parts go one after the other through two slots of page-locked memory: while the processor
// updates one, the weights of the part before it leave and the gradients of the part behind it
// arrive, each on a stream of their own. Transfers come after what the device's stream has to do
// when Run is called, and what is enqueued there afterwards finds the new weights. The host waits
// for none of the last ones. Parts that lie in host memory themselves are updated there, one after
// the other.
#ifndef MEGATRON_OPTIM_HOST_UPDATE_H_
#define MEGATRON_OPTIM_HOST_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The gradients and weights of some elements, flat and of the same length.
struct HostPart {
  Tensor gradients, weights;
};

class HostUpdate {
 public:
  // Takes page-locked memory for parts of at most `most_elements`. `stream` is that of the device.
  // Gradients or weights without a dtype lie in host memory, for which nothing is taken; when Run
  // is called, the host has waited for all copies from and to them. Gradients have a dtype only if
  // weights have. The update, which `reads_weights` or only writes them, has `threads` threads.
  // Fails where the system locks no more memory.
  static absl::StatusOr<std::unique_ptr<HostUpdate>> Create(
      const Stream& stream, int64_t most_elements, std::optional<DType> gradients_dtype,
      std::optional<DType> weights_dtype, bool reads_weights, int threads, MemoryLedger* ledger);
  // Waits for the transfers.
  ~HostUpdate();

  // Calls update(i, copy, host) for each part in turn, where `copy` is the host's copy of parts[i]
  // and `host` the stream to use. The gradients of the copy are those of the part. Its weights are
  // the device's if the update reads them, and undefined otherwise; those that it has afterwards
  // are sent. Where all parts lie in host memory, the copy is the part. `meanwhile` is called once,
  // when the first transfers are on their way.
  void Run(absl::Span<const HostPart> parts, absl::FunctionRef<void()> meanwhile,
           absl::FunctionRef<void(size_t, const HostPart&, const Stream&)> update);

 private:
  struct Slot {
    PinnedBuffer gradients, weights;
    // Behind the slot's last transfers to and from the host; null on the meta device.
    std::unique_ptr<CudaEvent> fetched, sent;
  };

  HostUpdate(const Stream& stream, bool fetches_gradients, bool reads_weights, int threads)
      : stream_(stream),
        fetches_gradients_(fetches_gradients),
        reads_weights_(reads_weights),
        pool_(threads) {}
  // Returns the part's places in the slot.
  HostPart In(const Slot& slot, const HostPart& part) const;
  void Fetch(const HostPart& part, const Slot& slot);
  void Send(const HostPart& part, const Slot& slot);

  const Stream stream_;
  const bool fetches_gradients_, reads_weights_;
  ThreadPool pool_;
  std::vector<Slot> slots_;  // two, or none where parts lie in host memory
  // Null on the meta device and where there are no slots.
  std::unique_ptr<CudaStream> to_host_, from_host_;
  std::unique_ptr<CudaEvent> given_;  // behind what the device's stream had to do before Run
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_HOST_UPDATE_H_
