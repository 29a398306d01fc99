// HostMirror: what the host reads and writes of a tensor that lives on a device.
//
//   HostMirror loss(sums, "loss");
//   loss.Fetch(stream);               // waits for the stream on CUDA
//   float value = loss.host().data<float>()[0];
//
// Alternatively, if the host has other work meanwhile:
//
//   loss.StartFetch(stream);
//   ...                               // nobody touches loss.host()
//   loss.Finish();
//
// The mirror of a CPU tensor is the tensor itself, so that fetching and sending are free; on CUDA
// it is a copy in page-locked memory of the host; on the meta device it has no memory either.
#ifndef MEGATRON_TENSOR_HOST_MIRROR_H_
#define MEGATRON_TENSOR_HOST_MIRROR_H_

#include <memory>
#include <string>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class CudaEvent;

// Copies between tensors of equal dtype and shape, both contiguous and each on the stream's device
// or on the CPU. With CUDA on one side it returns when it has happened.
void Transport(const Stream& stream, const Tensor& in, const Tensor& out);

class HostMirror {
 public:
  HostMirror();
  // `tensor` is contiguous and outlives this. `name` is for the message when memory is short.
  HostMirror(const Tensor& tensor, const std::string& name);
  HostMirror(HostMirror&&) noexcept;
  HostMirror& operator=(HostMirror&&) noexcept;
  ~HostMirror();

  const Tensor& host() const { return host_; }
  // The host's copy of a part of the mirrored tensor's memory, with any dtype and shape.
  Tensor Of(const Tensor& part) const;
  void Fetch(const Stream& stream) const;  // host = device
  void Send(const Stream& stream) const;   // device = host

  // The same without waiting: host() is not touched, nor for StartSend changed, until Finish.
  void StartFetch(const Stream& stream) const;
  void StartSend(const Stream& stream) const;
  // Waits for what was started last, and so for all of the same stream. Free where it was nothing.
  void Finish() const;

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  void Start(const Stream& stream, const Tensor& in, const Tensor& out) const;

  Tensor device_, host_;
  std::unique_ptr<void, Free> memory_;  // null: host_ is device_
  std::unique_ptr<CudaEvent> started_;  // behind the last copy
  mutable bool pending_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_HOST_MIRROR_H_
