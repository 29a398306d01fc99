// AdamW's update of one element, operation by operation. This is the definition: the kernels of
// every instruction set, and those of CUDA, compute the same bits.
//
// Each operation rounds once, to nearest, as IEEE 754 says of it: products, square root and
// division, and the fused multiply-adds that are written as such. No others are fused, and
// denormals are not flushed. The bits of a NaN are not defined. Moments that are kept in bf16 are
// rounded by chance: a second moment changes by a thousandth in a step, which rounding to nearest
// would lose.
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

// The moments that are kept in bf16.
struct AdamWRounding {
  bool m = false, v = false;
};

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

// Updates both moments and returns the new weight.
MEGATRON_HOST_DEVICE inline float AdamWElement(const AdamWStep& step, float grad, float w, float* m,
                                               float* v) {
  const float g = grad * step.grad_scale;
  *m = fmaf(step.beta1, *m, step.one_minus_beta1 * g);
  *v = fmaf(step.beta2, *v, step.one_minus_beta2 * g * g);
  const float denominator = fmaf(sqrtf(*v), step.inverse_sqrt_correction2, step.epsilon);
  return fmaf(-step.step_size, *m / denominator, w * step.keep);
}

// The same where moments are kept in bf16: the new weight is made of the moments before they are
// rounded.
MEGATRON_HOST_DEVICE inline float AdamWElement(const AdamWStep& step, AdamWRounding rounding,
                                               float grad, float w, float* m, float* v) {
  const float updated = AdamWElement(step, grad, w, m, v);
  const uint32_t random = RoundingBits(step.rounding_key, grad, w);
  if (rounding.m) *m = RoundByChance(*m, random & 0xffffu);
  if (rounding.v) *v = RoundByChance(*v, random >> 16);
  return updated;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ADAMW_ELEMENT_H_
