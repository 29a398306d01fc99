#include "megatron/ops/activation.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/elementwise_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

const ElementwiseKernels& Kernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kElementwiseKernels : avx2::kElementwiseKernels;
}

char* At(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset * SizeOf(tensor.dtype());
}

int64_t RowGrain(int64_t features) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, features));
}

void CheckGate(const Stream& stream, const Tensor& y, const Tensor& gate_up) {
  CheckFloating(y);
  CheckContiguous(stream, y, y.dtype(), {y.dim(0), y.dim(1)});
  CheckContiguous(stream, gate_up, y.dtype(), {y.dim(0), 2 * y.dim(1)});
}

}  // namespace

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                       const Tensor& y_TI) {
  CheckFloating(x_TI);
  CheckContiguous(stream, x_TI, x_TI.dtype(), x_TI.shape());
  CheckContiguous(stream, y_TI, x_TI.dtype(), x_TI.shape());
  if (RunsOnCuda(stream)) return OnCuda<ActivationForward>(stream, activation, x_TI, y_TI);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), x_TI.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().activate(activation, x_TI.dtype(), At(x_TI, begin), At(y_TI, begin), count);
  });
}

void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TI,
                        const Tensor& x_TI, const Tensor& dx_TI) {
  CheckFloating(x_TI);
  CheckContiguous(stream, x_TI, x_TI.dtype(), x_TI.shape());
  CheckContiguous(stream, dy_TI, x_TI.dtype(), x_TI.shape());
  CheckContiguous(stream, dx_TI, x_TI.dtype(), x_TI.shape());
  if (RunsOnCuda(stream)) return OnCuda<ActivationBackward>(stream, activation, dy_TI, x_TI, dx_TI);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), x_TI.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().activate_backward(activation, x_TI.dtype(), At(dy_TI, begin), At(x_TI, begin),
                                At(dx_TI, begin), count);
  });
}

void ActivationBackwardAndBias(const Stream& stream, Activation activation, const Tensor& dy_TI,
                               const Tensor& x_TI, const Tensor& dx_TI, const Tensor& dbias_I) {
  CheckFloating(x_TI);
  const Shape shape = {x_TI.dim(0), x_TI.dim(1)};
  for (const Tensor& tensor : {x_TI, dy_TI, dx_TI})
    CheckContiguous(stream, tensor, x_TI.dtype(), shape);
  CheckContiguous(stream, dbias_I, DType::kFloat32, {shape[1]});
  if (RunsOnCuda(stream)) {
    return OnCuda<ActivationBackwardAndBias>(stream, activation, dy_TI, x_TI, dx_TI, dbias_I);
  }
  ActivationBackward(stream, activation, dy_TI, x_TI, dx_TI);
  BiasBackward(stream, dx_TI, dbias_I);
}

bool ActivationBackwardSumsForFree(const Stream& stream) {
  return RunsOnCuda(stream) && cuda_kernel<ActivationBackwardAndBias> != nullptr;
}

void GateForward(const Stream& stream, const Gate& gate, const Tensor& gate_up_T2I,
                 const Tensor& y_TI) {
  CheckGate(stream, y_TI, gate_up_T2I);
  if (RunsOnCuda(stream)) return OnCuda<GateForward>(stream, gate, gate_up_T2I, y_TI);
  if (!RunsOnCpu(stream)) return;
  const int64_t features = y_TI.dim(1);
  ParallelElements(stream.pool(), y_TI.dim(0), RowGrain(features),
                   [&](int64_t begin, int64_t count) {
                     for (int64_t t = begin; t < begin + count; ++t) {
                       Kernels().gate(gate, y_TI.dtype(), At(gate_up_T2I, t * 2 * features),
                                      At(y_TI, t * features), features);
                     }
                   });
}

void GateBackward(const Stream& stream, const Gate& gate, const Tensor& dy_TI,
                  const Tensor& gate_up_T2I, const Tensor& d_gate_up_T2I) {
  CheckGate(stream, dy_TI, gate_up_T2I);
  CheckGate(stream, dy_TI, d_gate_up_T2I);
  if (RunsOnCuda(stream))
    return OnCuda<GateBackward>(stream, gate, dy_TI, gate_up_T2I, d_gate_up_T2I);
  if (!RunsOnCpu(stream)) return;
  const int64_t features = dy_TI.dim(1);
  ParallelElements(stream.pool(), dy_TI.dim(0), RowGrain(features),
                   [&](int64_t begin, int64_t count) {
                     for (int64_t t = begin; t < begin + count; ++t) {
                       Kernels().gate_backward(gate, dy_TI.dtype(), At(dy_TI, t * features),
                                               At(gate_up_T2I, t * 2 * features),
                                               At(d_gate_up_T2I, t * 2 * features), features);
                     }
                   });
}

}  // namespace megatron::ops
