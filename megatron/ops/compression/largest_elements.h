// The elements of largest magnitude, apart from the others. Legend: N elements, K of them taken.
// All tensors are contiguous; values are fp32, indices int32. These ops run on the CPU.
#ifndef MEGATRON_OPS_COMPRESSION_LARGEST_ELEMENTS_H_
#define MEGATRON_OPS_COMPRESSION_LARGEST_ELEMENTS_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Moves the K elements of largest magnitude out of x, where zeros stay, to `values`, and their
// places to `indices`, which ascend. Of equal magnitudes the first are taken. A NaN is larger than
// an infinity. 0 <= K <= N < 2^31.
void TakeLargest(const Stream& stream, const Tensor& x_N, const Tensor& indices_K,
                 const Tensor& values_K);

// Returns how many elements of x have a magnitude above the threshold, which is not negative. A NaN
// does; 0 on a meta stream.
int64_t CountAbove(const Stream& stream, const Tensor& x_N, float threshold);

// x[indices[i]] += values[i]. Indices ascend; one outside x ends the program.
void AddAtIndices(const Stream& stream, const Tensor& indices_K, const Tensor& values_K,
                  const Tensor& x_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_COMPRESSION_LARGEST_ELEMENTS_H_
