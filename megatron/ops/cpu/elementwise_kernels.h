// Kernels of elementwise.h and activation.h over contiguous memory.
#ifndef MEGATRON_OPS_CPU_ELEMENTWISE_KERNELS_H_
#define MEGATRON_OPS_CPU_ELEMENTWISE_KERNELS_H_

#include <cstdint>

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct ElementwiseKernels {
  void (*convert)(DType from, const void* in, DType to, void* out, int64_t count);
  // `from` is `to` or fp32.
  void (*add)(DType from, const void* in, DType to, void* out, int64_t count);
  void (*scale)(DType dtype, float factor, void* out, int64_t count);
  void (*soft_cap)(DType dtype, float cap, void* x, int64_t count);
  void (*activate)(Activation activation, DType dtype, const void* x, void* y, int64_t count);
  void (*activate_backward)(Activation activation, DType dtype, const void* dy, const void* x,
                            void* dx, int64_t count);
  // One row, which holds all gates and then all ups.
  void (*gate)(const Gate& gate, DType dtype, const void* gate_up, void* y, int64_t features);
  void (*gate_backward)(const Gate& gate, DType dtype, const void* dy, const void* gate_up,
                        void* d_gate_up, int64_t features);
};

namespace avx2 {
extern const ElementwiseKernels kElementwiseKernels;
}
namespace avx512 {
extern const ElementwiseKernels kElementwiseKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ELEMENTWISE_KERNELS_H_
