// The scalars of an AdamW step, the same for all devices.
#ifndef MEGATRON_OPS_ADAMW_STEP_H_
#define MEGATRON_OPS_ADAMW_STEP_H_

#include <cmath>
#include <cstdint>

#include "megatron/ops/adamw_element.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

inline AdamWStep StepOf(const AdamWOptions& options, const OptimizerSegment& segment) {
  const double step = static_cast<double>(options.step), lr = segment.lr;
  const double correction1 = options.bias_correction ? 1 - std::pow(options.beta1, step) : 1;
  const double correction2 = options.bias_correction ? 1 - std::pow(options.beta2, step) : 1;
  AdamWStep out;
  out.beta1 = static_cast<float>(options.beta1);
  out.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  out.beta2 = static_cast<float>(options.beta2);
  out.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  out.grad_scale = options.grad_scale;
  out.keep = static_cast<float>(1 - lr * segment.weight_decay);
  out.step_size = static_cast<float>(lr / correction1);
  out.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2));
  out.epsilon = options.epsilon * segment.epsilon_factor;
  out.rounding_key = static_cast<uint32_t>(options.step);
  return out;
}

// The type of a moment's tensor: codes of 8-bit floats are kUInt8.
inline MomentType MomentTypeOf(DType dtype) {
  return dtype == DType::kUInt8      ? MomentType::kFloat8
         : dtype == DType::kBFloat16 ? MomentType::kBFloat16
                                     : MomentType::kFloat32;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ADAMW_STEP_H_
