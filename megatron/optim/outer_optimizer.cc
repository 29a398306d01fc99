#include "megatron/optim/outer_optimizer.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr int64_t kMostPieceElements = int64_t{1} << 20;

}  // namespace

OuterOptimizer::OuterOptimizer(const OuterOptimizerOptions& options, const ProcessGroups& groups,
                               ParameterBuffers* buffers, MemoryLedger* ledger)
    : options_(options), groups_(groups), buffers_(buffers) {
  CHECK(options.enabled());
  CHECK(!buffers->has_host_part());
  for (const Bucket& bucket : buffers->buckets()) {
    positions_.push_back(elements_);
    const int64_t size = buffers->optimizer_range(bucket).size();
    elements_ += size;
    piece_elements_ = std::max(piece_elements_, std::min(size, kMostPieceElements));
  }
  const int64_t bytes = elements_ * SizeOf(DType::kFloat32);
  global_ = Buffer(buffers->options().device, bytes, "global weights", ledger);
  if (has_momentum())
    momentum_ = Buffer(buffers->options().device, bytes, "outer momentum", ledger);
  if (!sends_codes()) return;
  const Device& device = buffers->options().device;
  const Device host = device.type == DeviceType::kMeta ? device : Device();
  codes_ = Buffer(host, (1 + islands()) * OuterCodeBytes(options.gradient_type, piece_elements_),
                  "host/outer codes", ledger);
  values_ = Buffer(host, 2 * piece_elements_ * SizeOf(DType::kFloat32), "host/outer codes", ledger);
}

const ProcessGroup& OuterOptimizer::IslandsOf(const Bucket& bucket) const {
  return bucket.section == Section::kExperts ? groups_.expert_data_replicas
                                             : groups_.data_context_replicas;
}

Tensor OuterOptimizer::Part(const Buffer& buffer, const Bucket& bucket,
                            const FlatRange& range) const {
  const FlatRange mine = buffers_->optimizer_range(bucket);
  CHECK(mine.begin <= range.begin && range.end <= mine.end);
  const int64_t at = positions_[&bucket - buffers_->buckets().data()] + range.begin - mine.begin;
  return buffer.At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor OuterOptimizer::Global(const Bucket& bucket, const FlatRange& range) const {
  return Part(global_, bucket, range);
}

Tensor OuterOptimizer::Momentum(const Bucket& bucket, const FlatRange& range) const {
  return Part(momentum_, bucket, range);
}

std::vector<Tensor> OuterOptimizer::tensors() const {
  std::vector<Tensor> tensors = {global_.At(0, DType::kFloat32, {elements_})};
  if (has_momentum()) tensors.push_back(momentum_.At(0, DType::kFloat32, {elements_}));
  return tensors;
}

void OuterOptimizer::Start(const Stream& stream) {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() == 0) continue;
    ops::Copy(stream, buffers_->Masters(bucket, range), Global(bucket, range));
    if (has_momentum()) ops::Zero(stream, Momentum(bucket, range));
  }
}

// Steps are rare, so that passes over memory do not matter: the operations that are there do it.
void OuterOptimizer::StepBucket(const Bucket& bucket, const FlatRange& range,
                                const Stream& stream) const {
  const ProcessGroup& islands = IslandsOf(bucket);
  const Tensor masters = buffers_->Masters(bucket, range), global = Global(bucket, range);
  const Tensor gradient = buffers_->Gradients(bucket, range);
  ops::Copy(stream, masters, gradient);
  ops::Scale(stream, -1, gradient);
  ops::Add(stream, global, gradient);
  if (sends_codes()) {
    SumCodes(islands, gradient, stream);
  } else {
    islands.AllReduce(gradient, ReduceOp::kSum, stream);
  }
  if (islands.size() > 1) ops::Scale(stream, static_cast<float>(1.0 / islands.size()), gradient);
  // The masters are overwritten in the end, and hold the change until then.
  const Tensor change = masters;
  if (!has_momentum()) {
    ops::Copy(stream, gradient, change);
  } else {
    const Tensor momentum = Momentum(bucket, range);
    const float factor = static_cast<float>(options_.momentum);
    ops::Scale(stream, factor, momentum);
    ops::Add(stream, gradient, momentum);
    ops::Copy(stream, momentum, change);
    if (options_.nesterov) {
      ops::Scale(stream, factor, change);
      ops::Add(stream, gradient, change);
    }
  }
  ops::Scale(stream, static_cast<float>(-options_.lr), change);
  ops::Add(stream, change, global);
  ops::Copy(stream, global, masters);
}

void OuterOptimizer::SumCodes(const ProcessGroup& islands, const Tensor& gradient,
                              const Stream& stream) const {
  if (stream.is_meta()) return;
  const OuterGradientType type = options_.gradient_type;
  const Stream host = stream.device().type == DeviceType::kCpu ? stream : Stream::Inline();
  for (int64_t begin = 0; begin < gradient.numel(); begin += piece_elements_) {
    const int64_t count = std::min(piece_elements_, gradient.numel() - begin);
    const Tensor piece = gradient.Slice(0, begin, begin + count);
    const Tensor value = values_.At(0, DType::kFloat32, {count});
    const Tensor sum = values_.At(count * SizeOf(DType::kFloat32), DType::kFloat32, {count});
    const int64_t bytes = OuterCodeBytes(type, count);
    const Tensor mine = codes_.At(0, DType::kUInt8, {bytes});
    const Tensor all = codes_.At(bytes, DType::kUInt8, {islands.size() * bytes});
    Transport(stream, piece, sum);
    EncodeOuter(host, type, sum, mine);
    islands.AllGather(mine, all, host);
    for (int island = 0; island < islands.size(); ++island) {
      const Tensor& to = island == 0 ? sum : value;
      DecodeOuter(host, type, all.Slice(0, island * bytes, (island + 1) * bytes), to);
      if (island > 0) ops::Add(host, value, sum);
    }
    Transport(stream, sum, piece);
  }
}

void OuterOptimizer::Step(const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kDataParallel, "outer step");
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() > 0) StepBucket(bucket, range, stream);
  }
  buffers_->CopyMastersToWeights(stream);
}

void OuterOptimizer::SwapWithMasters(const Stream& stream) {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() == 0) continue;
    const Tensor masters = buffers_->Masters(bucket, range), global = Global(bucket, range);
    const Tensor kept = buffers_->Gradients(bucket, range);
    ops::Copy(stream, masters, kept);
    ops::Copy(stream, global, masters);
    ops::Copy(stream, kept, global);
  }
  buffers_->CopyMastersToWeights(stream);
}

}  // namespace megatron
