#include "megatron/tensor/host_mirror.h"

#include <cstring>

#include "megatron/tensor/cuda_device.h"

namespace megatron {

void Transport(const Stream& stream, const Tensor& in, const Tensor& out) {
  if (stream.device().type == DeviceType::kCuda) return CopyOnCuda(stream.cuda(), in, out);
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.shape(), out.shape());
  CHECK(in.is_contiguous() && out.is_contiguous()) << in << " to " << out;
  if (stream.is_meta() || in.bytes() == 0 || in.raw() == out.raw()) return;
  std::memcpy(out.raw(), in.raw(), in.bytes());
}

HostMirror::HostMirror(const Tensor& tensor, const std::string& name)
    : device_(tensor), host_(tensor) {
  CHECK(tensor.is_contiguous()) << tensor;
  if (tensor.device().type != DeviceType::kCuda) return;
  buffer_ = Buffer(Device(), tensor.bytes(), name, nullptr);
  host_ = buffer_.At(0, tensor.dtype(), tensor.shape());
}

Tensor HostMirror::Of(const Tensor& part) const {
  if (host_.raw() == device_.raw()) return part;
  const char* const begin = static_cast<const char*>(device_.raw());
  const int64_t offset = static_cast<const char*>(part.raw()) - begin;
  CHECK(offset >= 0 && offset + part.bytes() <= device_.bytes()) << part << " at " << offset;
  return part.Moved(static_cast<char*>(host_.raw()) + offset, Device());
}

void HostMirror::Fetch(const Stream& stream) const {
  if (stream.device().type == DeviceType::kCuda) Transport(stream, device_, host_);
}

void HostMirror::Send(const Stream& stream) const {
  if (stream.device().type == DeviceType::kCuda) Transport(stream, host_, device_);
}

}  // namespace megatron
