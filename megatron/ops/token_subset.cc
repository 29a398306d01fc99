#include "megatron/ops/token_subset.h"

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

uint32_t WordOf(PhiloxKey key, int64_t sample, int64_t place) {
  return Philox(key, {{static_cast<uint32_t>(sample),
                       static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32),
                       static_cast<uint32_t>(place), 0}})
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

// A cut into chunks of equal length, or no cut at all.
void CheckCut(const SampleCut& cut, int64_t length) {
  CHECK(0 <= cut.rank && cut.rank < cut.size) << cut.rank << " of " << cut.size;
  CHECK(cut.size == 1 || length % (2 * cut.size) == 0) << length << " for " << cut.size << " ranks";
}

void CheckNumbers(const Stream& stream, const Tensor& x, DType dtype, int64_t size) {
  if (x) CheckContiguous(stream, x, dtype, {size});
}

}  // namespace

void ChooseTokens(const Stream& stream, PhiloxKey key, int64_t samples, const Tensor& sample_T,
                  const Tensor& kept_K, const Tensor& place_W) {
  const int64_t tokens = place_W.numel(), kept_tokens = kept_K.numel(), rows = sample_T.numel();
  CHECK(samples > 0 && tokens % samples == 0 && kept_tokens % samples == 0 && rows % samples == 0)
      << samples;
  CheckContiguous(stream, sample_T, DType::kInt64, {rows});
  CheckContiguous(stream, kept_K, DType::kInt32, {kept_tokens});
  CheckContiguous(stream, place_W, DType::kInt32, {tokens});
  const int64_t length = tokens / samples, count = kept_tokens / samples;
  CHECK(count > 0 && count <= length && rows > 0) << count << " of " << length;
  if (RunsOnCuda(stream))
    return OnCuda<ChooseTokens>(stream, key, samples, sample_T, kept_K, place_W);
  if (!RunsOnCpu(stream)) return;
  stream.pool()->ParallelFor(samples, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * length, ordinal = sample_T.data<int64_t>()[s * (rows / samples)];
      // The words lie where the places will.
      int32_t* const place = place_W.data<int32_t>() + first;
      for (int64_t t = 0; t < length; ++t) place[t] = static_cast<int32_t>(WordOf(key, ordinal, t));
      const uint32_t threshold = Threshold(place, length, count);
      int64_t equal = count;  // number of words at the threshold that are kept
      for (int64_t t = 0; t < length; ++t) equal -= static_cast<uint32_t>(place[t]) < threshold;
      auto next = static_cast<int32_t>(s * count);
      for (int64_t t = 0; t < length; ++t) {
        const auto word = static_cast<uint32_t>(place[t]);
        const bool kept = word < threshold || (word == threshold && equal-- > 0);
        if (kept) kept_K.data<int32_t>()[next] = static_cast<int32_t>(first + t);
        place[t] = kept ? next++ : -1;
      }
    }
  });
}

void FindKeptRows(const Stream& stream, const SampleCut& cut, int64_t samples, const Tensor& kept_K,
                  const Tensor& place_W, const KeptRows& rows) {
  const int64_t tokens = place_W.numel(), kept_tokens = kept_K.numel();
  const int64_t length = tokens / samples, count = kept_tokens / samples;
  CheckCut(cut, length);
  CheckCut(cut, count);
  CheckContiguous(stream, kept_K, DType::kInt32, {kept_tokens});
  CheckContiguous(stream, place_W, DType::kInt32, {tokens});
  CheckContiguous(stream, rows.row_K, DType::kInt32, {kept_tokens});
  CheckContiguous(stream, rows.place_T, DType::kInt32, {tokens / cut.size});
  CheckContiguous(stream, rows.bypass_T, DType::kInt32, {tokens / cut.size});
  if (RunsOnCuda(stream)) return OnCuda<FindKeptRows>(stream, cut, samples, kept_K, place_W, rows);
  if (!RunsOnCpu(stream)) return;
  const int64_t kept_here = kept_tokens / cut.size;
  for (int64_t k = 0; k < kept_tokens; ++k) {
    const int64_t place = cut.TokenOf(count, k / kept_here, k % kept_here);
    const int64_t token = kept_K.data<int32_t>()[place];
    const bool here = cut.OwnerOf(length, token) == cut.rank;
    rows.row_K.data<int32_t>()[k] = here ? static_cast<int32_t>(cut.RowOf(length, token)) : -1;
  }
  for (int64_t row = 0; row < tokens / cut.size; ++row) {
    const int64_t place = place_W.data<int32_t>()[cut.TokenOf(length, cut.rank, row)];
    const bool kept = place >= 0;
    rows.place_T.data<int32_t>()[row] =
        kept ? static_cast<int32_t>(cut.OwnerOf(count, place) * kept_here + cut.RowOf(count, place))
             : -1;
    rows.bypass_T.data<int32_t>()[row] = kept ? -1 : static_cast<int32_t>(row);
  }
}

void FindKeptPart(const Stream& stream, const SampleCut& cut, int64_t samples, int64_t length,
                  const Tensor& kept_K, const Tensor& sample_T, const KeptPart& part) {
  const int64_t count = kept_K.numel() / samples, size = kept_K.numel() / cut.size;
  CheckCut(cut, count);
  CheckContiguous(stream, kept_K, DType::kInt32, {kept_K.numel()});
  CheckContiguous(stream, sample_T, DType::kInt64, {sample_T.numel()});
  CheckNumbers(stream, part.cu_seqlens, DType::kInt32, samples + 1);
  CheckNumbers(stream, part.place_M, DType::kInt32, size);
  CheckNumbers(stream, part.sample_M, DType::kInt64, size);
  CheckNumbers(stream, part.position_M, DType::kInt32, size);
  if (RunsOnCuda(stream))
    return OnCuda<FindKeptPart>(stream, cut, samples, length, kept_K, sample_T, part);
  if (!RunsOnCpu(stream)) return;
  for (int64_t s = 0; part.cu_seqlens && s <= samples; ++s)
    part.cu_seqlens.data<int32_t>()[s] = static_cast<int32_t>(s * count / cut.size);
  const int64_t rows = sample_T.numel() / samples;
  for (int64_t row = 0; row < size; ++row) {
    const int64_t place = cut.TokenOf(count, cut.rank, row);
    if (part.place_M) part.place_M.data<int32_t>()[row] = static_cast<int32_t>(place % count);
    if (part.sample_M)
      part.sample_M.data<int64_t>()[row] = sample_T.data<int64_t>()[place / count * rows];
    if (part.position_M) {
      part.position_M.data<int32_t>()[row] =
          static_cast<int32_t>(kept_K.data<int32_t>()[place] % length);
    }
  }
}

void GatherNumbers(const Stream& stream, const Tensor& kept_K, const Tensor& x_W,
                   const Tensor& y_K) {
  CheckContiguous(stream, kept_K, DType::kInt32, {kept_K.numel()});
  CheckContiguous(stream, x_W, DType::kInt32, {x_W.numel()});
  CheckContiguous(stream, y_K, DType::kInt32, {kept_K.numel()});
  if (RunsOnCuda(stream)) return OnCuda<GatherNumbers>(stream, kept_K, x_W, y_K);
  if (!RunsOnCpu(stream)) return;
  const int32_t* const kept = kept_K.data<int32_t>();
  for (int64_t k = 0; k < kept_K.numel(); ++k)
    y_K.data<int32_t>()[k] = x_W.data<int32_t>()[kept[k]];
}

}  // namespace megatron::ops
