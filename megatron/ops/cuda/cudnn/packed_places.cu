#include "megatron/ops/cuda/cudnn/packed_places.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {
namespace {

// Each thread has one sequence, and one more thread the end of the last.
__global__ void __launch_bounds__(kThreads) PackedPlacesKernel(PackedPlaces places) {
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (s > places.sequences) return;
  const int64_t begin = places.cu_seqlens[min(s, places.given)];
  for (int tensor = 0; tensor < places.tensors; ++tensor) {
    places.offsets[tensor * (places.sequences + 1) + s] = begin * places.token_strides[tensor];
  }
  if (s == places.sequences) return;
  const int64_t end = places.cu_seqlens[min(s + 1, places.given)];
  places.lengths[s] = static_cast<int32_t>(end - begin);
}

}  // namespace

void WritePackedPlaces(const Stream& stream, const PackedPlaces& places) {
  PackedPlacesKernel<<<Blocks(places.sequences + 1, kThreads), kThreads, 0, Handle(stream)>>>(
      places);
  CheckLaunched("places of packed sequences");
}

}  // namespace megatron::ops::cuda
