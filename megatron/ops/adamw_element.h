// AdamW's update of one element, operation by operation. This is the definition: the kernels of
// every instruction set, and those of CUDA, compute the same bits.
//
// Each operation rounds once, to nearest, as IEEE 754 says of it: products, square root and
// division, and the fused multiply-adds that are written as such. No others are fused, and
// denormals are not flushed. The bits of a NaN are not defined.
//
// It includes nothing of ours, because sources of cpu_kernel_library include it.
#ifndef MEGATRON_OPS_ADAMW_ELEMENT_H_
#define MEGATRON_OPS_ADAMW_ELEMENT_H_

#include <cmath>

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
};

// Updates both moments and returns the new weight.
MEGATRON_HOST_DEVICE inline float AdamWElement(const AdamWStep& step, float grad, float w, float* m,
                                               float* v) {
  const float g = grad * step.grad_scale;
  *m = fmaf(step.beta1, *m, step.one_minus_beta1 * g);
  *v = fmaf(step.beta2, *v, step.one_minus_beta2 * g * g);
  const float denominator = fmaf(sqrtf(*v), step.inverse_sqrt_correction2, step.epsilon);
  return fmaf(-step.step_size, *m / denominator, w * step.keep);
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ADAMW_ELEMENT_H_
