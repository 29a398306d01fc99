// Matrix products of the emulated device, which has no cuBLASLt: the CPU's.
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron::ops::cuda {
namespace {

Tensor View(const Tensor& tensor) { return EmulatedView(tensor); }

}  // namespace

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  ops::LinearForward(EmulatingStream(stream), View(x_TI), View(w_OI), View(bias_O), View(y_TO));
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  ops::LinearActivationForward(EmulatingStream(stream), activation, View(x_TI), View(w_OI),
                               View(bias_O), View(pre_TO), View(y_TO));
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  ops::LinearBackwardInput(EmulatingStream(stream), View(dy_TO), View(w_OI), View(dx_TI));
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI) {
  ops::LinearActivationBackwardInput(EmulatingStream(stream), activation, View(dy_TO), View(w_OI),
                                     View(pre_TI), View(dx_TI));
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  ops::LinearBackwardWeight(EmulatingStream(stream), View(dy_TO), View(x_TI), View(dw_OI),
                            View(dbias_O));
}

}  // namespace megatron::ops::cuda
