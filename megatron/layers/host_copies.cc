#include "megatron/layers/host_copies.h"

#include "glog/logging.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// More than there are copies on their way beside one that is awaited, so that no wait is longer
// than it must be.
constexpr int kPoints = 32;

}  // namespace

HostCopies::HostCopies(const Stream& stream) : stream_(stream), copy_stream_(stream) {
  CHECK(stream.device().type != DeviceType::kCpu);
  if (stream.is_meta()) return;
  const int device = stream.device().index;
  copies_ = std::make_unique<CudaStream>(device);
  copy_stream_ = Trace::FollowBeside(stream, Stream::Cuda(device, copies_.get()), "chunks");
  for (int i = 0; i < kPoints; ++i)
    points_.push_back({std::make_unique<CudaEvent>(device), std::make_unique<CudaEvent>(device)});
}

HostCopies::~HostCopies() {
  if (copies_ != nullptr) copies_->Synchronize();
}

int64_t HostCopies::Start(const char* name, const Tensor& in, const Tensor& out) {
  const int64_t copy = started_++;
  if (copies_ == nullptr) return copy;
  const Points& points = points_[copy % kPoints];
  points.start->Record(*stream_.cuda());
  points.start->HoldBack(*copies_);
  {
    const TraceSpan span(copy_stream_, name, {{"bytes", in.bytes()}});
    EnqueueCopyOnCuda(copies_.get(), in, out);
  }
  points.end->Record(*copies_);
  return copy;
}

void HostCopies::Await(int64_t copy) {
  if (copies_ == nullptr || copy <= awaited_) return;
  points_[copy % kPoints].end->HoldBack(*stream_.cuda());
  awaited_ = copy;
}

}  // namespace megatron
