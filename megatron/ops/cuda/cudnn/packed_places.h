// The offsets of packed sequences in each tensor of a call, in the form that cuDNN reads on the
// device.
#ifndef MEGATRON_OPS_CUDA_CUDNN_PACKED_PLACES_H_
#define MEGATRON_OPS_CUDA_CUDNN_PACKED_PLACES_H_

#include <cstdint>

#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

struct PackedPlaces {
  static constexpr int kMostTensors = 9;

  const int32_t* cu_seqlens = nullptr;  // [given + 1]
  int64_t given = 0;
  int64_t sequences = 0;  // further ones are empty and lie behind the given ones
  int tensors = 0;
  int64_t token_strides[kMostTensors] = {};
  int64_t* offsets = nullptr;  // [tensors, sequences + 1] (=), in elements
  int32_t* lengths = nullptr;  // [sequences] (=)
};

void WritePackedPlaces(const Stream& stream, const PackedPlaces& places);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_PACKED_PLACES_H_
