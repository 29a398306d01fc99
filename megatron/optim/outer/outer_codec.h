// The codes in which islands send each other outer gradients (outer_optimizer.h).
//
// - kInt8: messages of 8 bits of ops/compression/group_codes.h, with an fp32 scale for each group.
// - kE3M0: blocks of kE3M0Block elements, the last of which may be shorter. A block is a byte e,
// and
//   four bits for each element: a sign, and a magnitude that is 0 or one of 2^(e - 6), 2^(e - 5)
//   ... 2^e, rounded to the nearest; halfway away from zero. 2^e is the power of two that is
//   nearest to the largest magnitude. The first element of a pair has the low bits.
//
// A group or block with an infinity or a NaN becomes NaNs, so that it is noticed by all islands.
#ifndef MEGATRON_OPTIM_OUTER_OUTER_CODEC_H_
#define MEGATRON_OPTIM_OUTER_OUTER_CODEC_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// kFloat32 has no codes.
enum class OuterGradientType { kFloat32, kInt8, kE3M0 };

inline constexpr int64_t kE3M0Block = 128;

// Returns the bytes of so many elements.
int64_t OuterCodeBytes(OuterGradientType type, int64_t elements);
// Elements are fp32, and codes bytes, both in host memory and contiguous. The stream is of the CPU.
void EncodeOuter(const Stream& stream, OuterGradientType type, const Tensor& elements_N,
                 const Tensor& codes_M);
void DecodeOuter(const Stream& stream, OuterGradientType type, const Tensor& codes_M,
                 const Tensor& elements_N);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OUTER_OUTER_CODEC_H_
