#include "megatron/layers/kv_cache.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {

KvCache::KvCache(const KvCacheOptions& options, const Stream& stream, MemoryLedger* ledger)
    : options_(options) {
  const int64_t places = options.slots * options.capacity;
  CHECK_LT(places, int64_t{1} << 31) << options.slots << " slots of " << options.capacity;
  const Shape shape{static_cast<int64_t>(options.layers.size()), places, options.groups,
                    options.key_size + options.value_size};
  const int64_t contents = RoundUp(shape.numel() * SizeOf(options.dtype), Buffer::kAlignment);
  const int64_t positions = RoundUp(places * SizeOf(DType::kInt32), Buffer::kAlignment);
  const int64_t begins = (options.slots + 1) * SizeOf(DType::kInt32);
  buffer_ = Buffer(stream.device(), contents + positions + begins, "key-value cache", ledger);
  keys_values_LUGW_ = buffer_.At(0, options.dtype, shape);
  position_U_ = buffer_.At(contents, DType::kInt32, {places});
  cu_seqlens_ = buffer_.At(contents + positions, DType::kInt32, {options.slots + 1});
  if (stream.is_meta()) return;
  const HostMirror numbers(buffer_.At(contents, DType::kUInt8, {positions + begins}),
                           "key-value cache");
  int32_t* const position = numbers.Of(position_U_).data<int32_t>();
  for (int64_t i = 0; i < places; ++i) position[i] = static_cast<int32_t>(i % options.capacity);
  int32_t* const begin = numbers.Of(cu_seqlens_).data<int32_t>();
  for (int64_t i = 0; i <= options.slots; ++i)
    begin[i] = static_cast<int32_t>(i * options.capacity);
  numbers.Send(stream);
}

Tensor KvCache::Layer(int64_t layer) const {
  const auto found = std::find(options_.layers.begin(), options_.layers.end(), layer);
  CHECK(found != options_.layers.end()) << "layer " << layer << " has no cache";
  return keys_values_LUGW_.Select(0, found - options_.layers.begin());
}

// A token has one place, as it would have with one expert.
void KvCache::Put(const Stream& stream, int64_t layer, const Tensor& new_TGW,
                  const Tensor& place_T11) const {
  const auto rows = [](const Tensor& x) { return x.View({x.dim(0), x.dim(1) * x.dim(2)}); };
  ops::Permute(stream, rows(new_TGW), place_T11, rows(Layer(layer)));
}

}  // namespace megatron
