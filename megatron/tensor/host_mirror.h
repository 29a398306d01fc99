// HostMirror: what the host reads and writes of a tensor that lives on a device.
//
//   HostMirror loss(sums, "loss");
//   loss.Fetch(stream);               // waits for the stream on CUDA
//   float value = loss.host().data<float>()[0];
//
// On the CPU it is the tensor itself, and bringing and sending are free; on CUDA it is a copy in
// host memory; on the meta device it has no memory either.
#ifndef MEGATRON_TENSOR_HOST_MIRROR_H_
#define MEGATRON_TENSOR_HOST_MIRROR_H_

#include <string>

#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Copies between tensors of equal dtype and shape, both contiguous and each on the stream's device
// or on the CPU. With CUDA on one side it returns when it has happened.
void Transport(const Stream& stream, const Tensor& in, const Tensor& out);

class HostMirror {
 public:
  HostMirror() = default;
  // `tensor` is contiguous and outlives this. `name` is for the message when memory is short.
  HostMirror(const Tensor& tensor, const std::string& name);

  const Tensor& host() const { return host_; }
  // What the host has of a part of the mirrored tensor's memory, of any dtype and shape.
  Tensor Of(const Tensor& part) const;
  void Fetch(const Stream& stream) const;  // host = device
  void Send(const Stream& stream) const;   // device = host

 private:
  Buffer buffer_;
  Tensor device_, host_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_HOST_MIRROR_H_
