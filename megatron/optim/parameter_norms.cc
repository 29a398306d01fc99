#include "megatron/optim/parameter_norms.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/main_replica.h"

namespace megatron {
namespace {

// Returns the most elements that an update shows at once.
int64_t LargestPart(const ParameterBuffers& buffers) {
  int64_t largest = 0;
  for (const FlatParameter& flat : buffers.parameters())
    largest = std::max(largest, flat.range.size());
  return buffers.options().unit == ShardUnit::kElement
             ? std::min(largest, UpdateObserver::kMostElements)
             : largest;
}

}  // namespace

ParameterNorms::ParameterNorms(const ParameterBuffers& buffers, const ProcessGroups& groups,
                               std::vector<int> group_of, const Tensor& sums, MemoryLedger* ledger)
    : buffers_(buffers),
      groups_(groups),
      group_of_(std::move(group_of)),
      sums_(sums),
      before_(buffers.options().device, LargestPart(buffers) * SizeOf(DType::kFloat32),
              "diagnostics", ledger),
      after_(buffers.options().device, buffers.has_masters_elsewhere() ? before_.bytes() : 0,
             "diagnostics", ledger) {
  CHECK_EQ(group_of_.size(), buffers.parameters().size());
}

Tensor ParameterNorms::SumOf(const FlatParameter& flat, Kind kind) const {
  const auto index = &flat - buffers_.parameters().data();
  return sums_.Select(0, group_of_[index]).Select(0, kind);
}

Tensor ParameterNorms::scratch() const {
  return before_.At(0, DType::kFloat32, {before_.bytes() / SizeOf(DType::kFloat32)});
}

Tensor ParameterNorms::Masters(const FlatParameter& flat, const FlatRange& range,
                               const Stream& stream) const {
  const int64_t elements = after_.bytes() / SizeOf(DType::kFloat32);
  return buffers_.MastersOnDevice(buffers_.bucket_of(flat), range,
                                  after_.At(0, DType::kFloat32, {elements}), stream);
}

void ParameterNorms::AddGradients(float scale, const Stream& stream) const {
  for (const FlatParameter& flat : buffers_.parameters()) {
    const FlatRange mine = MainReplicaRange(buffers_, flat, groups_);
    if (mine.size() == 0) continue;
    // Copies are made part by part.
    const int64_t most = buffers_.copies_gradients() ? scratch().numel() : mine.size();
    for (FlatRange part = {mine.begin, 0}; part.begin < mine.end; part.begin = part.end) {
      part.end = std::min(mine.end, part.begin + most);
      ops::SumOfSquares(
          stream, scale,
          buffers_.GradientsOnDevice(buffers_.bucket_of(flat), part, scratch(), stream),
          SumOf(flat, kGradients));
    }
  }
}

void ParameterNorms::AddWeights(const Stream& stream) const {
  for (const FlatParameter& flat : buffers_.parameters()) {
    const FlatRange mine = MainReplicaRange(buffers_, flat, groups_);
    if (mine.size() == 0) continue;
    for (FlatRange part = {mine.begin, 0}; part.begin < mine.end; part.begin = part.end) {
      part.end = std::min(mine.end, part.begin + kMostElements);
      ops::SumOfSquares(stream, 1, Masters(flat, part, stream), SumOf(flat, kWeights));
    }
  }
}

void ParameterNorms::BeforeUpdate(const FlatParameter& flat, const FlatRange& range,
                                  const Stream& stream) {
  const FlatRange mine = Common(range, MainReplicaRange(buffers_, flat, groups_));
  if (mine.size() == 0) return;
  ops::Copy(stream, Masters(flat, mine, stream), before_.At(0, DType::kFloat32, {mine.size()}));
}

void ParameterNorms::AfterUpdate(const FlatParameter& flat, const FlatRange& range,
                                 const Stream& stream) {
  const FlatRange mine = Common(range, MainReplicaRange(buffers_, flat, groups_));
  if (mine.size() == 0) return;
  const Tensor change = before_.At(0, DType::kFloat32, {mine.size()});
  ops::Scale(stream, -1, change);
  ops::Add(stream, Masters(flat, mine, stream), change);
  ops::SumOfSquares(stream, 1, change, SumOf(flat, kUpdates));
}

}  // namespace megatron
