// AdamW's update of one element, operation by operation. This is the definition: the kernels of
// every instruction set, and those of CUDA, compute the same bits.
//
// Each operation rounds once, to nearest, as IEEE 754 says of it: products, square root and
// division, and the fused multiply-adds that are written as such. No others are fused, and
// denormals are not flushed. The bits of a NaN are not defined. Moments that are kept in bf16 or in
// 8-bit floats are rounded by chance: a second moment changes by a thousandth in a step, which
// rounding to nearest would lose.
//
// It includes nothing of ours, because sources of cpu_kernel_library include it.
#ifndef MEGATRON_OPS_ADAMW_ELEMENT_H_
#define MEGATRON_OPS_ADAMW_ELEMENT_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MEGATRON_HOST_DEVICE __host__ __device__
#else
#define MEGATRON_HOST_DEVICE
#endif

namespace megatron::ops {

// The scalars of one AdamW step, which the caller computes in double (adamw_step.h).
struct AdamWStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float grad_scale;
  float keep;                      // 1 - lr * decay
  float step_size;                 // lr / c1
  float inverse_sqrt_correction2;  // 1 / sqrt(c2)
  float epsilon;
  uint32_t rounding_key;  // another one in each step
};

// The types in which a moment is kept.
enum class MomentType { kFloat32, kBFloat16, kFloat8 };
struct AdamWMoments {
  MomentType m = MomentType::kFloat32, v = MomentType::kFloat32;
};

// The 8-bit floats of the moments: a number's bits, without its sign, are the first bits of the
// fp32 number that is kToCode times as large. So exponents are biased as in IEEE 754, zero and
// denormals included, and the last two bits are the mantissa. There are no infinities and no NaN.
// They have no scale, and so an element means the same in every tensor, shard and checkpoint.
//
// The first bit is the sign. The smallest magnitudes are 2^-28 and, with both bits of the mantissa,
// 2^-26; the largest is 28.
struct FirstMoment8 {
  static constexpr float kToCode = 0x1p-100f, kFromCode = 0x1p100f;
  static constexpr uint32_t kLargest = 0x7f, kSign = 0x80;
};
// Second moments have no sign. The smallest are 2^-56 and, with both bits of the mantissa, 2^-54,
// which is less than the square of an epsilon of 1e-8; the largest is 448.
struct SecondMoment8 {
  static constexpr float kToCode = 0x1p-72f, kFromCode = 0x1p72f;
  static constexpr uint32_t kLargest = 0xff, kSign = 0;
};
// The bits of an fp32 number behind those of an 8-bit float.
constexpr int kBitsBehindMoment8 = 21;

MEGATRON_HOST_DEVICE inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// A permutation of 32 bits in which each bit of x changes about half of the result's.
MEGATRON_HOST_DEVICE inline uint32_t MixBits(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Returns random bits, 16 for each moment. They follow from the gradient and the weight before the
// update, so that they are the same wherever the element lies.
MEGATRON_HOST_DEVICE inline uint32_t RoundingBits(uint32_t key, float grad, float w) {
  return MixBits(MixBits(BitsOf(w) ^ key) ^ BitsOf(grad));
}

// Rounds x to one of its neighbours in bf16, to the nearer one with the greater probability: the
// mean over all 16-bit values of `random` is x.
MEGATRON_HOST_DEVICE inline float RoundByChance(float x, uint32_t random) {
  if (!(fabsf(x) < HUGE_VALF)) return x;
  const uint32_t bits = (BitsOf(x) + random) & 0xffff0000u;
  float rounded;
  memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

// Returns the code of a number x of the format. `added` is less than 2^21; with 0, x that lies
// between two numbers becomes the one nearer to 0. Magnitudes beyond the largest become the
// largest, and so does NaN.
template <typename Format>
MEGATRON_HOST_DEVICE inline uint8_t ToMoment8(float x, uint32_t added) {
  const uint32_t magnitude = BitsOf(fabsf(x) * Format::kToCode);
  const uint32_t code = (magnitude + added) >> kBitsBehindMoment8;
  return static_cast<uint8_t>((code < Format::kLargest ? code : Format::kLargest) |
                              (x < 0 ? Format::kSign : 0));
}
template <typename Format>
MEGATRON_HOST_DEVICE inline float FromMoment8(uint8_t code) {
  const uint32_t bits = (code & Format::kLargest) << kBitsBehindMoment8;
  float magnitude;
  memcpy(&magnitude, &bits, sizeof(magnitude));
  magnitude *= Format::kFromCode;
  return (code & Format::kSign) != 0 ? -magnitude : magnitude;
}
// Rounds x to one of its neighbours, as RoundByChance does; `random` has 16 bits.
template <typename Format>
MEGATRON_HOST_DEVICE inline float RoundToMoment8(float x, uint32_t random) {
  // The bits that `random` lacks are half of its unit, so that the mean is x.
  return FromMoment8<Format>(ToMoment8<Format>(x, random << 5 | 16));
}

// A master weight of fp32 can be kept as the model's weight in bf16 and a remainder: the last 16 of
// the master's bits. The weight is the master rounded to nearest and, where two numbers are as
// near, away from zero. So the remainder's first bit says whether it was rounded up, and both
// together are the master, to the bit.
MEGATRON_HOST_DEVICE inline uint16_t WeightOfMaster(float master) {
  return static_cast<uint16_t>((BitsOf(master) + 0x8000u) >> 16);
}
MEGATRON_HOST_DEVICE inline uint16_t RemainderOfMaster(float master) {
  return static_cast<uint16_t>(BitsOf(master) & 0xffffu);
}
MEGATRON_HOST_DEVICE inline float MasterOf(uint16_t weight, uint16_t remainder) {
  // What has the first bit is 2^16 less.
  const uint32_t bits = (static_cast<uint32_t>(weight) << 16) + (remainder ^ 0x8000u) - 0x8000u;
  float master;
  memcpy(&master, &bits, sizeof(master));
  return master;
}

// Updates both moments and returns the new weight.
MEGATRON_HOST_DEVICE inline float AdamWElement(const AdamWStep& step, float grad, float w, float* m,
                                               float* v) {
  const float g = grad * step.grad_scale;
  *m = fmaf(step.beta1, *m, step.one_minus_beta1 * g);
  *v = fmaf(step.beta2, *v, step.one_minus_beta2 * g * g);
  const float denominator = fmaf(sqrtf(*v), step.inverse_sqrt_correction2, step.epsilon);
  return fmaf(-step.step_size, *m / denominator, w * step.keep);
}

// The same where moments are kept in these types, of which they are numbers then: the new weight is
// made of the moments before they are rounded.
MEGATRON_HOST_DEVICE inline float AdamWElement(const AdamWStep& step, AdamWMoments moments,
                                               float grad, float w, float* m, float* v) {
  const float updated = AdamWElement(step, grad, w, m, v);
  const uint32_t random = RoundingBits(step.rounding_key, grad, w);
  const uint32_t m_random = random & 0xffffu, v_random = random >> 16;
  if (moments.m == MomentType::kBFloat16) *m = RoundByChance(*m, m_random);
  if (moments.m == MomentType::kFloat8) *m = RoundToMoment8<FirstMoment8>(*m, m_random);
  if (moments.v == MomentType::kBFloat16) *v = RoundByChance(*v, v_random);
  if (moments.v == MomentType::kFloat8) *v = RoundToMoment8<SecondMoment8>(*v, v_random);
  return updated;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ADAMW_ELEMENT_H_
