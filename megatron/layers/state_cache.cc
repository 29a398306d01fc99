#include "megatron/layers/state_cache.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {
namespace {

Shape OfSlots(int64_t slots, const Shape& shape) {
  std::vector<int64_t> dims = {slots};
  dims.insert(dims.end(), shape.begin(), shape.end());
  return Shape(dims);
}

}  // namespace

StateCache::StateCache(const StateCacheOptions& options, const Stream& stream,
                       MemoryLedger* ledger) {
  if (options.layers.empty()) return;
  const auto bytes = [&](DType dtype, const Shape& shape) {
    return RoundUp(options.slots * shape.numel() * SizeOf(dtype), Buffer::kAlignment);
  };
  int64_t all = 0;
  for (const StateCacheOptions::Layer& layer : options.layers)
    all += bytes(DType::kFloat32, layer.shapes.state) + bytes(options.dtype, layer.shapes.recent);
  buffer_ = Buffer(stream.device(), all, "states of sequences", ledger);
  int64_t offset = 0;
  const auto next = [&](DType dtype, const Shape& shape) {
    const Tensor tensor = buffer_.At(offset, dtype, OfSlots(options.slots, shape));
    offset += bytes(dtype, shape);
    return tensor;
  };
  for (const StateCacheOptions::Layer& layer : options.layers) {
    Place place;
    place.layer = layer.number;
    place.state = next(DType::kFloat32, layer.shapes.state);
    place.recent = next(options.dtype, layer.shapes.recent);
    places_.push_back(place);
  }
}

const StateCache::Place& StateCache::PlaceOf(int64_t layer) const {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [layer](const Place& place) { return place.layer == layer; });
  CHECK(found != places_.end()) << "layer " << layer << " has no states";
  return *found;
}

}  // namespace megatron
