// The codes in which islands send each other outer gradients (outer_optimizer.h).
//
// Elements are coded in blocks of kOuterBlock, the last of which may be shorter. A block has a scale
// and then its codes:
//
// - kInt8: an fp32 scale s, the largest magnitude / 127, and a byte q for each element, which is
//   s q, rounded to the nearest.
// - kE3M0: a byte e, and four bits for each element: a sign, and a magnitude that is 0 or one of
//   2^(e - 6), 2^(e - 5) ... 2^e, rounded to the nearest; halfway away from zero. 2^e is the power of
//   two that is nearest to the largest magnitude. The first element of a pair has the low bits.
//
// A block with an infinity or a NaN becomes NaNs, so that it is noticed by all islands.
#ifndef MEGATRON_OPTIM_OUTER_CODEC_H_
#define MEGATRON_OPTIM_OUTER_CODEC_H_

#include <cstdint>

namespace megatron {

// kFloat32 has no codes.
enum class OuterGradientType { kFloat32, kInt8, kE3M0 };

inline constexpr int64_t kOuterBlock = 128;

// Returns the bytes of so many elements.
int64_t OuterCodeBytes(OuterGradientType type, int64_t elements);
void EncodeOuter(OuterGradientType type, const float* values, int64_t elements, uint8_t* codes);
void DecodeOuter(OuterGradientType type, const uint8_t* codes, int64_t elements, float* values);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OUTER_CODEC_H_
