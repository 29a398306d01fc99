#include "megatron/layers/host_copies.h"

#include "glog/logging.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// More than there are copies of a direction on their way beside one that is awaited, so that no
// wait is longer than it must be.
constexpr int kPoints = 32;

// The rows of the trace.
constexpr const char* kNames[] = {"chunks to host", "chunks from host"};

const char* BeginOf(const Tensor& tensor) { return static_cast<const char*>(tensor.raw()); }

}  // namespace

HostCopies::HostCopies(const Stream& stream)
    : stream_(stream), lines_{{Line(stream), Line(stream)}} {
  CHECK(stream.device().type != DeviceType::kCpu);
  if (stream.is_meta()) return;
  const int device = stream.device().index;
  for (const Direction direction : {kToHost, kFromHost}) {
    Line& line = lines_[direction];
    line.cuda = std::make_unique<CudaStream>(device);
    line.stream =
        Trace::FollowBeside(stream, Stream::Cuda(device, line.cuda.get()), kNames[direction]);
    for (int i = 0; i < kPoints; ++i)
      line.points.push_back(
          {std::make_unique<CudaEvent>(device), std::make_unique<CudaEvent>(device)});
  }
}

HostCopies::~HostCopies() {
  for (const Line& line : lines_) {
    if (line.cuda != nullptr) line.cuda->Synchronize();
  }
}

HostCopies::Copy HostCopies::SenderOf(const Tensor& on_host) const {
  const char* const begin = BeginOf(on_host);
  const char* const end = begin + on_host.bytes();
  Copy last = {kToHost, -1};
  auto sent = sent_.lower_bound(end);
  while (sent != sent_.begin()) {
    --sent;
    if (sent->second.end <= begin) continue;
    if (sent->second.copy.number > last.number) last = sent->second.copy;
  }
  return last;
}

void HostCopies::HoldBack(const Line& line, const Copy& copy) const {
  const Line& other = lines_[copy.direction];
  if (&line == &other || IsAwaited(copy)) return;
  other.points[copy.number % kPoints].end->HoldBack(*line.cuda);
}

HostCopies::Copy HostCopies::Start(const char* name, const Tensor& in, const Tensor& out,
                                   const Copy& after) {
  const Direction direction = in.device().type == DeviceType::kCpu ? kFromHost : kToHost;
  Line& line = lines_[direction];
  const Copy copy = {direction, line.started++};
  if (line.cuda == nullptr) return copy;
  const Points& points = line.points[copy.number % kPoints];
  points.start->Record(*stream_.cuda());
  points.start->HoldBack(*line.cuda);
  HoldBack(line, after);
  if (direction == kFromHost) HoldBack(line, SenderOf(in));
  {
    const TraceSpan span(line.stream, name, {{"bytes", in.bytes()}});
    EnqueueCopyOnCuda(line.cuda.get(), in, out);
  }
  points.end->Record(*line.cuda);
  if (direction == kToHost) sent_[BeginOf(out)] = {BeginOf(out) + out.bytes(), copy};
  return copy;
}

void HostCopies::Await(const Copy& copy) {
  Line& line = lines_[copy.direction];
  if (line.cuda == nullptr || IsAwaited(copy)) return;
  line.points[copy.number % kPoints].end->HoldBack(*stream_.cuda());
  line.awaited = copy.number;
}

void HostCopies::AwaitAll() {
  for (const Direction direction : {kToHost, kFromHost})
    Await({direction, lines_[direction].started - 1});
  sent_.clear();
}

}  // namespace megatron
