#include "megatron/ops/activation.h"

#include <algorithm>

#include "glog/logging.h"
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

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TF,
                       const Tensor& y_TF) {
  CheckFloating(x_TF);
  CheckContiguous(stream, x_TF, x_TF.dtype(), x_TF.shape());
  CheckContiguous(stream, y_TF, x_TF.dtype(), x_TF.shape());
  if (RunsOnCuda(stream)) return OnCuda<ActivationForward>(stream, activation, x_TF, y_TF);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), x_TF.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().activate(activation, x_TF.dtype(), At(x_TF, begin), At(y_TF, begin), count);
  });
}

void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                        const Tensor& x_TF, const Tensor& dx_TF) {
  CheckFloating(x_TF);
  CheckContiguous(stream, x_TF, x_TF.dtype(), x_TF.shape());
  CheckContiguous(stream, dy_TF, x_TF.dtype(), x_TF.shape());
  CheckContiguous(stream, dx_TF, x_TF.dtype(), x_TF.shape());
  if (RunsOnCuda(stream)) return OnCuda<ActivationBackward>(stream, activation, dy_TF, x_TF, dx_TF);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), x_TF.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().activate_backward(activation, x_TF.dtype(), At(dy_TF, begin), At(x_TF, begin),
                                At(dx_TF, begin), count);
  });
}

void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2F,
                 const Tensor& y_TF) {
  CheckGate(stream, y_TF, gate_up_T2F);
  if (RunsOnCuda(stream)) return OnCuda<GateForward>(stream, activation, gate_up_T2F, y_TF);
  if (!RunsOnCpu(stream)) return;
  const int64_t features = y_TF.dim(1);
  ParallelElements(stream.pool(), y_TF.dim(0), RowGrain(features),
                   [&](int64_t begin, int64_t count) {
                     for (int64_t t = begin; t < begin + count; ++t) {
                       Kernels().gate(activation, y_TF.dtype(), At(gate_up_T2F, t * 2 * features),
                                      At(y_TF, t * features), features);
                     }
                   });
}

void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                  const Tensor& gate_up_T2F, const Tensor& d_gate_up_T2F) {
  CheckGate(stream, dy_TF, gate_up_T2F);
  CheckGate(stream, dy_TF, d_gate_up_T2F);
  if (RunsOnCuda(stream))
    return OnCuda<GateBackward>(stream, activation, dy_TF, gate_up_T2F, d_gate_up_T2F);
  if (!RunsOnCpu(stream)) return;
  const int64_t features = dy_TF.dim(1);
  ParallelElements(stream.pool(), dy_TF.dim(0), RowGrain(features),
                   [&](int64_t begin, int64_t count) {
                     for (int64_t t = begin; t < begin + count; ++t) {
                       Kernels().gate_backward(activation, dy_TF.dtype(), At(dy_TF, t * features),
                                               At(gate_up_T2F, t * 2 * features),
                                               At(d_gate_up_T2F, t * 2 * features), features);
                     }
                   });
}

}  // namespace megatron::ops
