// HostCopies: copies between a device's memory and page-locked memory of the host, beside
// computing.
//
// Copies are made one after the other, on a stream of their own. Each begins when what the device's
// stream has to do at its start is done. On the meta device nothing is copied.
//
// Threads: that of the stream.
#ifndef MEGATRON_LAYERS_HOST_COPIES_H_
#define MEGATRON_LAYERS_HOST_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class HostCopies {
 public:
  // `stream` is a device's, or the meta device's.
  explicit HostCopies(const Stream& stream);
  // Waits for the copies.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Begins a copy of contiguous tensors, one of which is on the host, and returns its number. The
  // host's tensor is touched by nothing but such copies.
  int64_t Start(const char* name, const Tensor& in, const Tensor& out);
  // The stream's operations from now on happen after the copy and those that were started before.
  void Await(int64_t copy);
  // The same for all copies so far.
  void AwaitAll() {
    if (started_ > 0) Await(started_ - 1);
  }

 private:
  // Points of the device's stream, at the start of a copy, and of the copies', behind it.
  struct Points {
    std::unique_ptr<CudaEvent> start, end;
  };

  const Stream stream_;
  std::unique_ptr<CudaStream> copies_;  // null on the meta device
  Stream copy_stream_;                  // a stream on copies_
  // Those of the last copies, which copy n shares with all earlier ones of the same remainder: to
  // wait for a later copy than is needed is no mistake.
  std::vector<Points> points_;
  int64_t started_ = 0;
  int64_t awaited_ = -1;  // the last copy that the stream has waited for
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_HOST_COPIES_H_
