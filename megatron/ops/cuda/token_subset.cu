#include <cub/block/block_scan.cuh>

#include "megatron/base/philox.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/token_subset.h"

namespace megatron::ops::cuda {
namespace {

// Each block has a sample, and each of its threads every kThreads-th token. The words lie where the
// places will: a thread reads and writes those of its own tokens alone.
__global__ void __launch_bounds__(kThreads)
    ChooseOfSample(PhiloxKey key, int64_t length, int64_t count, int64_t rows,
                   const int64_t* sample, int32_t* kept, int32_t* places) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int partial[kWarps];
  const int64_t first = blockIdx.x * length;
  const auto ordinal = static_cast<uint64_t>(sample[blockIdx.x * rows]);
  int32_t* const place = places + first;
  for (int64_t t = threadIdx.x; t < length; t += kThreads) {
    place[t] = static_cast<int32_t>(
        Philox(key, {{static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32),
                      static_cast<uint32_t>(t), 0}})
            .word[0]);
  }
  // The least word such that it and those below are at least `count` of the words.
  uint32_t low = 0, high = ~uint32_t{0};
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    int below = 0;
    for (int64_t t = threadIdx.x; t < length; t += kThreads)
      below += static_cast<uint32_t>(place[t]) <= middle;
    if (BlockSum(below, partial) >= count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  int below = 0;
  for (int64_t t = threadIdx.x; t < length; t += kThreads)
    below += static_cast<uint32_t>(place[t]) < low;
  const int64_t equal_kept = count - BlockSum(below, partial);
  int64_t below_before = 0, equal_before = 0;
  for (int64_t begin = 0; begin < length; begin += kThreads) {
    const int64_t t = begin + threadIdx.x;
    const uint32_t word = t < length ? static_cast<uint32_t>(place[t]) : 0;
    const bool is_below = t < length && word < low, is_equal = t < length && word == low;
    int number_below, all_below, number_equal, all_equal;
    Scan(storage).ExclusiveSum(is_below ? 1 : 0, number_below, all_below);
    __syncthreads();
    Scan(storage).ExclusiveSum(is_equal ? 1 : 0, number_equal, all_equal);
    __syncthreads();
    const int64_t equal = equal_before + number_equal;
    const bool is_kept = is_below || (is_equal && equal < equal_kept);
    const int64_t next = blockIdx.x * count + below_before + number_below +
                         (equal < equal_kept ? equal : equal_kept);
    if (is_kept) kept[next] = static_cast<int32_t>(first + t);
    if (t < length) place[t] = is_kept ? static_cast<int32_t>(next) : -1;
    below_before += all_below;
    equal_before += all_equal;
  }
}

// Each thread has a kept token, and a row of this rank.
__global__ void __launch_bounds__(kThreads)
    FindRows(SampleCut cut, int64_t length, int64_t count, int64_t kept_tokens, int64_t tokens,
             const int32_t* kept, const int32_t* places, int32_t* rows, int32_t* place_of_row,
             int32_t* bypass) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t kept_here = kept_tokens / cut.size;
  if (i < kept_tokens) {
    const int64_t token = kept[cut.TokenOf(count, i / kept_here, i % kept_here)];
    const bool here = cut.OwnerOf(length, token) == cut.rank;
    rows[i] = here ? static_cast<int32_t>(cut.RowOf(length, token)) : -1;
  }
  if (i >= tokens / cut.size) return;
  const int64_t place = places[cut.TokenOf(length, cut.rank, i)];
  const bool is_kept = place >= 0;
  place_of_row[i] =
      is_kept
          ? static_cast<int32_t>(cut.OwnerOf(count, place) * kept_here + cut.RowOf(count, place))
          : -1;
  bypass[i] = is_kept ? -1 : static_cast<int32_t>(i);
}

// Each thread has a kept token of the rank, and a boundary where there is one of its number.
__global__ void __launch_bounds__(kThreads)
    FindPart(SampleCut cut, int64_t samples, int64_t length, int64_t count, int64_t rows,
             const int32_t* kept, const int64_t* sample, int32_t* cu_seqlens, int32_t* places,
             int64_t* samples_of, int32_t* positions) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (cu_seqlens != nullptr && i <= samples)
    cu_seqlens[i] = static_cast<int32_t>(i * count / cut.size);
  if (i >= samples * count / cut.size) return;
  const int64_t place = cut.TokenOf(count, cut.rank, i);
  if (places != nullptr) places[i] = static_cast<int32_t>(place % count);
  if (samples_of != nullptr) samples_of[i] = sample[place / count * rows];
  if (positions != nullptr) positions[i] = static_cast<int32_t>(kept[place] % length);
}

__global__ void __launch_bounds__(kThreads)
    GatherInts(const int32_t* kept, int64_t count, const int32_t* x, int32_t* y) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k < count) y[k] = x[kept[k]];
}

template <typename T>
T* DataOrNull(const Tensor& x) {
  return x ? x.data<T>() : nullptr;
}

}  // namespace

void ChooseTokens(const Stream& stream, PhiloxKey key, int64_t samples, const Tensor& sample_T,
                  const Tensor& kept_K, const Tensor& place_W) {
  ChooseOfSample<<<Blocks(samples, 1), kThreads, 0, Handle(stream)>>>(
      key, place_W.numel() / samples, kept_K.numel() / samples, sample_T.numel() / samples,
      sample_T.data<int64_t>(), kept_K.data<int32_t>(), place_W.data<int32_t>());
  CheckLaunched("choice of tokens");
}

void FindKeptRows(const Stream& stream, const SampleCut& cut, int64_t samples, const Tensor& kept_K,
                  const Tensor& place_W, const KeptRows& rows) {
  const int64_t kept = kept_K.numel(), tokens = place_W.numel();
  const int64_t threads = kept > tokens / cut.size ? kept : tokens / cut.size;
  FindRows<<<Blocks(threads, kThreads), kThreads, 0, Handle(stream)>>>(
      cut, tokens / samples, kept / samples, kept, tokens, kept_K.data<int32_t>(),
      place_W.data<int32_t>(), rows.row_K.data<int32_t>(), rows.place_T.data<int32_t>(),
      rows.bypass_T.data<int32_t>());
  CheckLaunched("rows of kept tokens");
}

void FindKeptPart(const Stream& stream, const SampleCut& cut, int64_t samples, int64_t length,
                  const Tensor& kept_K, const Tensor& sample_T, const KeptPart& part) {
  const int64_t mine = kept_K.numel() / cut.size;
  const int64_t threads = mine > samples ? mine : samples + 1;
  FindPart<<<Blocks(threads, kThreads), kThreads, 0, Handle(stream)>>>(
      cut, samples, length, kept_K.numel() / samples, sample_T.numel() / samples,
      kept_K.data<int32_t>(), sample_T.data<int64_t>(), DataOrNull<int32_t>(part.cu_seqlens),
      DataOrNull<int32_t>(part.place_M), DataOrNull<int64_t>(part.sample_M),
      DataOrNull<int32_t>(part.position_M));
  CheckLaunched("kept tokens of a rank");
}

void GatherNumbers(const Stream& stream, const Tensor& kept_K, const Tensor& x_W,
                   const Tensor& y_K) {
  GatherInts<<<Blocks(kept_K.numel(), kThreads), kThreads, 0, Handle(stream)>>>(
      kept_K.data<int32_t>(), kept_K.numel(), x_W.data<int32_t>(), y_K.data<int32_t>());
  CheckLaunched("numbers of kept tokens");
}

MEGATRON_CUDA_KERNEL(ChooseTokens);
MEGATRON_CUDA_KERNEL(FindKeptRows);
MEGATRON_CUDA_KERNEL(FindKeptPart);
MEGATRON_CUDA_KERNEL(GatherNumbers);

}  // namespace megatron::ops::cuda
