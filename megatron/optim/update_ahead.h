// UpdateAhead: an update in host memory that goes on while a device computes with the weights of
// before.
//
//   ahead.TakeGradients();     // a step ends
//   ahead.Start(update);       // the next one begins
//   ... its passes ...
//   ahead.Finish();            // the device's weights become the new ones
//
// Gradients leave behind what the device's stream has to do when they are taken, and the host waits
// for nothing. Whoever writes gradients next waits for taken(). A thread of its own waits for them
// and updates part after part, with weights in page-locked memory that has room for all of them. So
// no part waits for the device. What is enqueued on the device's stream behind Finish finds the new
// weights.
#ifndef MEGATRON_OPTIM_UPDATE_AHEAD_H_
#define MEGATRON_OPTIM_UPDATE_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/host_update.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class UpdateAhead {
 public:
  // Updates part i: the gradients that were taken, and the host's copy of its weights.
  using Update = std::function<void(size_t i, const HostPart& part, const Stream& host)>;

  // `parts` are on the device, `gradients` of the same lengths in page-locked memory. `stream` is
  // that of the device. The update, which `reads_weights` or only writes them, has `threads`
  // threads. Fails where the system locks no more memory.
  static absl::StatusOr<std::unique_ptr<UpdateAhead>> Create(const Stream& stream,
                                                             const std::vector<HostPart>& parts,
                                                             const std::vector<Tensor>& gradients,
                                                             bool reads_weights, int threads,
                                                             MemoryLedger* ledger);
  // Waits for the update and the transfers.
  ~UpdateAhead();

  void TakeGradients();
  // The event behind the gradients that were taken last.
  const CudaEvent* taken() const { return taken_.get(); }
  // Waits until the host may read them.
  void WaitForGradients() const;
  // `update` runs on another thread until Finish.
  void Start(Update update);
  void Finish();

 private:
  struct Part {
    HostPart device;
    Tensor gradients;
    int64_t begin;  // where its weights begin in weights_
  };

  UpdateAhead(const Stream& stream, bool reads_weights, int threads)
      : stream_(stream), reads_weights_(reads_weights), pool_(threads) {}
  // The part on the host.
  HostPart OnHost(const Part& part) const;
  // Puts what `copies` has to do behind all that the device's stream has to do.
  void HoldBack(const CudaStream& copies) const;
  void Run(const Update& update, const Stream& stream) const;

  const Stream stream_;
  const bool reads_weights_;
  ThreadPool pool_;
  std::vector<Part> parts_;
  PinnedBuffer weights_;
  // Null on the meta device.
  std::unique_ptr<CudaStream> to_host_, from_host_;
  std::unique_ptr<CudaEvent> given_, taken_, ready_, sent_;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_UPDATE_AHEAD_H_
