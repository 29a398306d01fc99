#include "megatron/comm/host_staging.h"

#include <utility>
#include <vector>

#include "megatron/comm/collective.h"
#include "megatron/comm/communicator.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

// Host copies of a call's tensors, and which of them have to be copied back.
class Staging {
 public:
  explicit Staging(const Stream& stream) : stream_(stream) {}

  Tensor Sent(const Tensor& tensor) { return Add(tensor, /*sent=*/true, /*received=*/false); }
  Tensor Received(const Tensor& tensor) { return Add(tensor, false, true); }
  Tensor InPlace(const Tensor& tensor) { return Add(tensor, true, true); }
  std::vector<Transfer> Sent(absl::Span<const Transfer> transfers) {
    std::vector<Transfer> out;
    for (const Transfer& transfer : transfers)
      out.push_back({transfer.peer, Sent(transfer.tensor)});
    return out;
  }
  std::vector<Transfer> Received(absl::Span<const Transfer> transfers) {
    std::vector<Transfer> out;
    for (const Transfer& transfer : transfers)
      out.push_back({transfer.peer, Received(transfer.tensor)});
    return out;
  }
  void BringBack() const {
    for (const auto& [host, device] : received_) Transport(stream_, host, device);
  }

 private:
  Tensor Add(const Tensor& tensor, bool sent, bool received) {
    if (tensor.empty()) return tensor;
    buffers_.emplace_back(Device(), tensor.bytes(), "staging", nullptr);
    const Tensor host = buffers_.back().At(0, tensor.dtype(), tensor.shape());
    if (sent) Transport(stream_, tensor, host);
    if (received) received_.emplace_back(host, tensor);
    return host;
  }

  Stream stream_;
  std::vector<Buffer> buffers_;
  std::vector<std::pair<Tensor, Tensor>> received_;
};

}  // namespace

void RunOnHost(Communicator& communicator, const CollectiveCall& call, const Stream& stream) {
  Staging staging(stream);
  CollectiveCall on_host = call;
  on_host.in = call.out.empty() ? staging.InPlace(call.in) : staging.Sent(call.in);
  on_host.out = staging.Received(call.out);
  const std::vector<Transfer> sends = staging.Sent(call.sends),
                              receives = staging.Received(call.receives);
  on_host.sends = sends;
  on_host.receives = receives;
  communicator.Run(on_host, Stream::Inline());
  // Nobody reads what a failed call leaves in its buffers.
  if (communicator.status().ok()) staging.BringBack();
}

}  // namespace megatron
