#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/sequence_part.h"

namespace megatron::ops::cuda {
namespace {

// Each thread takes a token, and a boundary where there is one of its number.
__global__ void __launch_bounds__(kThreads)
    PartOfSequencesKernel(int64_t boundaries, const int32_t* whole, int64_t begin, int64_t end,
                          int32_t* part, int32_t* place) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < boundaries) {
    const int64_t at = whole[i];
    part[i] = static_cast<int32_t>(min(max(at, begin), end) - begin);
  }
  if (i >= end - begin) return;
  // The token's sequence is the last that begins at it or in front of it.
  int64_t first = 0, last = boundaries - 1;
  while (first + 1 < last) {
    const int64_t middle = (first + last) / 2;
    if (whole[middle] <= begin + i) {
      first = middle;
    } else {
      last = middle;
    }
  }
  place[i] = static_cast<int32_t>(begin + i - whole[first]);
}

}  // namespace

void PartOfSequences(const Stream& stream, const Tensor& cu_seqlens, int64_t begin, int64_t end,
                     const Tensor& part_cu_seqlens, const Tensor& place_T) {
  const int64_t boundaries = cu_seqlens.dim(0);
  const int64_t threads = boundaries > end - begin ? boundaries : end - begin;
  PartOfSequencesKernel<<<Blocks(threads, kThreads), kThreads, 0, Handle(stream)>>>(
      boundaries, cu_seqlens.data<int32_t>(), begin, end, part_cu_seqlens.data<int32_t>(),
      place_T.data<int32_t>());
  CheckLaunched("parts of sequences");
}

MEGATRON_CUDA_KERNEL(PartOfSequences);

}  // namespace megatron::ops::cuda
