#include "megatron/layers/float8_history.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

constexpr int64_t kOperands = 3, kWeight = 1;

}  // namespace

int64_t Float8History::num_layers() const {
  return empty() ? 0 : weights_.back().first + weights_.back().matrices;
}

int64_t Float8History::Add(const std::string& name, int64_t matrices) {
  CHECK(amax_L3_.empty()) << name << " is late";
  const int64_t first = num_layers();
  weights_.push_back({name, first, matrices});
  return first;
}

void Float8History::Allocate(Device device, MemoryLedger* ledger) {
  if (empty()) return;
  const int64_t layers = num_layers();
  const int64_t bytes = layers * kOperands * SizeOf(DType::kFloat32);
  buffer_ = Buffer(device, 2 * bytes, "fp8 scales", ledger);
  amax_L3_ = buffer_.At(0, DType::kFloat32, {layers, kOperands});
  seen_L3_ = buffer_.At(bytes, DType::kFloat32, {layers, kOperands});
  host_amax_ = HostMirror(amax_L3_, "fp8 scales");
  host_seen_ = HostMirror(seen_L3_, "fp8 scales");
  const Device host = device.type == DeviceType::kMeta ? device : Device();
  history_ = Buffer(host, options_.length * bytes, "fp8 history", nullptr);
  history_LH3_ = history_.At(0, DType::kFloat32, {layers, options_.length, kOperands});
}

Float8History::Layer Float8History::layer(int64_t index) const {
  return {amax_L3_.Select(0, index), seen_L3_.Select(0, index)};
}

Tensor Float8History::AmaxOfWeight(const std::string& name) const {
  const auto found = std::find_if(weights_.begin(), weights_.end(),
                                  [&](const Weight& weight) { return weight.name == name; });
  if (!known_ || found == weights_.end()) return Tensor();
  return amax_L3_.Slice(0, found->first, found->first + found->matrices).Select(1, kWeight);
}

std::vector<Float8History::Named> Float8History::Tensors() const {
  std::vector<Named> tensors;
  for (const Weight& weight : weights_) {
    const int64_t first = weight.first, matrices = weight.matrices;
    tensors.push_back({weight.name, matrices == 1
                                        ? history_LH3_.Select(0, first)
                                        : history_LH3_.Slice(0, first, first + matrices)});
  }
  return tensors;
}

void Float8History::Restored(const Stream& stream) {
  if (!empty()) SendScales(stream);
}

void Float8History::StartStep(const Stream& stream) const {
  if (!empty()) ops::Zero(stream, seen_L3_);
}

void Float8History::StartReduce(absl::Span<const ProcessGroup> groups, const Stream& stream) const {
  if (empty()) return;
  for (const ProcessGroup& group : groups) group.AllReduce(seen_L3_, ReduceOp::kMax, stream);
  host_seen_.StartFetch(stream);
}

float* Float8History::HistoryOf(int64_t layer) const {
  return history_LH3_.data<float>() + layer * options_.length * kOperands;
}

void Float8History::Record(const Stream& stream,
                           const std::map<std::string, std::vector<float>>& weights) {
  if (empty() || stream.is_meta()) return;
  host_seen_.Finish();
  const float* const host_seen = host_seen_.host().data<float>();
  std::map<int64_t, float> of_layers;
  for (const Weight& weight : weights_) {
    const auto found = weights.find(weight.name);
    if (found == weights.end()) continue;
    CHECK_EQ(static_cast<int64_t>(found->second.size()), weight.matrices) << weight.name;
    for (int64_t i = 0; i < weight.matrices; ++i) of_layers[weight.first + i] = found->second[i];
  }
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    const float* const seen = host_seen + layer * kOperands;
    float* const history = HistoryOf(layer);
    float added[kOperands] = {seen[0], seen[1], seen[2]};
    const auto weight = of_layers.find(layer);
    if (weight != of_layers.end()) added[kWeight] = weight->second;
    for (int64_t i = 0; i < kOperands; ++i)
      added[i] = added[i] > 0 && std::isfinite(added[i]) ? added[i] : history[i];
    std::copy_backward(history, history + (options_.length - 1) * kOperands,
                       history + options_.length * kOperands);
    std::copy_n(added, kOperands, history);
  }
  SendScales(stream);
}

void Float8History::SendScales(const Stream& stream) {
  host_amax_.Finish();
  known_ = false;
  const int64_t entries = options_.most_recent ? 1 : options_.length;
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    const float* const history = HistoryOf(layer);
    float* const amax = host_amax_.host().data<float>() + layer * kOperands;
    for (int64_t i = 0; i < kOperands; ++i) {
      float largest = 0;
      for (int64_t entry = 0; entry < entries; ++entry)
        largest = std::max(largest, history[entry * kOperands + i]);
      known_ = known_ || largest > 0;
      amax[i] = std::min(std::ldexp(largest, options_.margin), std::numeric_limits<float>::max());
    }
  }
  host_amax_.StartSend(stream);
}

}  // namespace megatron
