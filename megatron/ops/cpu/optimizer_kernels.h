// The kernels of ops/optimizer.h over contiguous memory.
#ifndef MEGATRON_OPS_CPU_OPTIMIZER_KERNELS_H_
#define MEGATRON_OPS_CPU_OPTIMIZER_KERNELS_H_

#include <cstdint>

#include "megatron/ops/adamw_element.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct SgdStep {
  float grad_scale, decay, momentum, lr;
};

struct LionStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float grad_scale;
  float keep;  // 1 - lr * decay
  float lr;
};

struct OptimizerPointers {
  const float* grad;
  void* m;  // AdamW and Lion: exp_avg; SGD: the momentum buffer, or null
  void* v;  // AdamW: exp_avg_sq; null for the others
  void* master;
  void* out;               // null if there is no copy in another dtype
  DType m_dtype, v_dtype;  // fp32; for AdamW also bf16 and kUInt8
  DType master_dtype;      // fp32; for AdamW also kUInt16: remainders
  DType out_dtype;
  int64_t count;
};

struct OptimizerKernels {
  void (*adamw)(const AdamWStep& step, const OptimizerPointers& at);
  void (*sgd)(const SgdStep& step, const OptimizerPointers& at);
  void (*lion)(const LionStep& step, const OptimizerPointers& at);
  // Returns the sum of squares of scale * x and sets `finite` to whether every x is finite.
  float (*sum_of_squares)(float scale, const float* x, int64_t count, bool* finite);
};

namespace avx2 {
extern const OptimizerKernels kOptimizerKernels;
}
namespace avx512 {
extern const OptimizerKernels kOptimizerKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_OPTIMIZER_KERNELS_H_
