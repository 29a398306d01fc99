#include "megatron/ops/token_subset.h"

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"

namespace megatron::ops {
namespace {

uint32_t WordOf(PhiloxKey key, int64_t sample, int32_t position) {
  return Philox(key, {{static_cast<uint32_t>(sample),
                       static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32),
                       static_cast<uint32_t>(position), 0}})
      .word[0];
}

// Returns the least word such that it and those below are at least `count` of the words.
uint32_t Threshold(const int32_t* words, int64_t size, int64_t count) {
  uint32_t low = 0, high = ~uint32_t{0};
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    int64_t below = 0;
    for (int64_t t = 0; t < size; ++t) below += static_cast<uint32_t>(words[t]) <= middle;
    if (below >= count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

template <typename T>
void Gather(const Tensor& kept_K, const Tensor& x_T, const Tensor& y_K) {
  const int32_t* const kept = kept_K.data<int32_t>();
  for (int64_t k = 0; k < kept_K.numel(); ++k) y_K.data<T>()[k] = x_T.data<T>()[kept[k]];
}

}  // namespace

void ChooseTokens(const Stream& stream, PhiloxKey key, int64_t samples, const Tensor& sample_T,
                  const Tensor& position_T, const TokenSubset& subset) {
  const int64_t tokens = sample_T.numel(), kept_tokens = subset.kept_K.numel();
  CHECK(samples > 0 && tokens % samples == 0 && kept_tokens % samples == 0) << samples;
  CheckContiguous(stream, sample_T, DType::kInt64, {tokens});
  CheckContiguous(stream, position_T, DType::kInt32, {tokens});
  CheckContiguous(stream, subset.kept_K, DType::kInt32, {kept_tokens});
  CheckContiguous(stream, subset.place_T, DType::kInt32, {tokens});
  CheckContiguous(stream, subset.bypass_T, DType::kInt32, {tokens});
  CheckContiguous(stream, subset.cu_seqlens, DType::kInt32, {samples + 1});
  CHECK(!RunsOnCuda(stream)) << "ChooseTokens runs on the CPU alone";
  if (!RunsOnCpu(stream)) return;
  const int64_t length = tokens / samples, count = kept_tokens / samples;
  CHECK(count > 0 && count <= length) << count;
  for (int64_t s = 0; s <= samples; ++s)
    subset.cu_seqlens.data<int32_t>()[s] = static_cast<int32_t>(s * count);
  stream.pool()->ParallelFor(samples, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * length;
      // The words lie where the places will.
      int32_t* const place = subset.place_T.data<int32_t>() + first;
      for (int64_t t = 0; t < length; ++t) {
        place[t] = static_cast<int32_t>(WordOf(key, sample_T.data<int64_t>()[first + t],
                                               position_T.data<int32_t>()[first + t]));
      }
      const uint32_t threshold = Threshold(place, length, count);
      int64_t equal = count;  // number of words at the threshold that are kept
      for (int64_t t = 0; t < length; ++t) equal -= static_cast<uint32_t>(place[t]) < threshold;
      int32_t* const bypass = subset.bypass_T.data<int32_t>() + first;
      auto next = static_cast<int32_t>(s * count);
      for (int64_t t = 0; t < length; ++t) {
        const auto word = static_cast<uint32_t>(place[t]);
        const bool kept = word < threshold || (word == threshold && equal-- > 0);
        const auto token = static_cast<int32_t>(first + t);
        if (kept) subset.kept_K.data<int32_t>()[next] = token;
        place[t] = kept ? next++ : -1;
        bypass[t] = kept ? -1 : token;
      }
    }
  });
}

void GatherNumbers(const Stream& stream, const Tensor& kept_K, const Tensor& x_T,
                   const Tensor& y_K) {
  CHECK(x_T.dtype() == DType::kInt32 || x_T.dtype() == DType::kInt64) << x_T;
  CheckContiguous(stream, kept_K, DType::kInt32, {kept_K.numel()});
  CheckContiguous(stream, x_T, x_T.dtype(), {x_T.numel()});
  CheckContiguous(stream, y_K, x_T.dtype(), {kept_K.numel()});
  CHECK(!RunsOnCuda(stream)) << "GatherNumbers runs on the CPU alone";
  if (!RunsOnCpu(stream)) return;
  if (x_T.dtype() == DType::kInt32) return Gather<int32_t>(kept_K, x_T, y_K);
  Gather<int64_t>(kept_K, x_T, y_K);
}

}  // namespace megatron::ops
