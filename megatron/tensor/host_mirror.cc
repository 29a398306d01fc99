#include "megatron/tensor/host_mirror.h"

#include <cstring>
#include <string>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {

void Transport(const Stream& stream, const Tensor& in, const Tensor& out) {
  const bool on_device =
      in.device().type == DeviceType::kCuda || out.device().type == DeviceType::kCuda;
  if (on_device) return CopyOnCuda(stream.cuda(), in, out);
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.shape(), out.shape());
  CHECK(in.is_contiguous() && out.is_contiguous()) << in << " to " << out;
  if (stream.is_meta() || in.bytes() == 0 || in.raw() == out.raw()) return;
  std::memcpy(out.raw(), in.raw(), in.bytes());
}

HostMirror::HostMirror() = default;
HostMirror::HostMirror(HostMirror&&) noexcept = default;
HostMirror& HostMirror::operator=(HostMirror&&) noexcept = default;
HostMirror::~HostMirror() { Finish(); }

void HostMirror::Free::operator()(void* memory) const { CudaFreeHost(memory); }

HostMirror::HostMirror(const Tensor& tensor, const std::string& name)
    : device_(tensor), host_(tensor) {
  CHECK(tensor.is_contiguous()) << tensor;
  if (tensor.device().type != DeviceType::kCuda) return;
  std::string error;
  memory_.reset(CudaAllocateHost(tensor.bytes(), &error));
  CHECK(error.empty()) << "out of page-locked memory: " << tensor.bytes() << " bytes for " << name
                       << ": " << error;
  host_ = Tensor(memory_.get(), tensor.dtype(), tensor.shape(), Device());
  started_ = std::make_unique<CudaEvent>(tensor.device().index);
}

Tensor HostMirror::Of(const Tensor& part) const {
  if (host_.raw() == device_.raw()) return part;
  const char* const begin = static_cast<const char*>(device_.raw());
  const int64_t offset = static_cast<const char*>(part.raw()) - begin;
  CHECK(offset >= 0 && offset + part.bytes() <= device_.bytes()) << part << " at " << offset;
  return part.Moved(static_cast<char*>(host_.raw()) + offset, Device());
}

void HostMirror::Start(const Stream& stream, const Tensor& in, const Tensor& out) const {
  if (memory_ == nullptr) return;
  EnqueueCopyOnCuda(stream.cuda(), in, out);
  started_->Record(*stream.cuda());
  pending_ = true;
}

void HostMirror::StartFetch(const Stream& stream) const { Start(stream, device_, host_); }
void HostMirror::StartSend(const Stream& stream) const { Start(stream, host_, device_); }

void HostMirror::Finish() const {
  if (!pending_ || started_ == nullptr) return;  // null: moved away
  started_->Wait();
  pending_ = false;
}

void HostMirror::Fetch(const Stream& stream) const {
  StartFetch(stream);
  Finish();
}

void HostMirror::Send(const Stream& stream) const {
  StartSend(stream);
  Finish();
}

}  // namespace megatron
