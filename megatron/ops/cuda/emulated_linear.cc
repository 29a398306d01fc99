// Matrix products of the emulated device, which has no cuBLASLt: the CPU's.
#include "megatron/ops/cuda/emulated_call.h"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/linear.h"

namespace megatron::ops::cuda {

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  MEGATRON_EMULATED_CALL(LinearForward, stream, x_TI, w_OI, bias_O, y_TO);
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  MEGATRON_EMULATED_CALL(LinearActivationForward, stream, activation, x_TI, w_OI, bias_O, pre_TO,
                         y_TO);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  MEGATRON_EMULATED_CALL(LinearBackwardInput, stream, dy_TO, w_OI, dx_TI);
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI) {
  MEGATRON_EMULATED_CALL(LinearActivationBackwardInput, stream, activation, dy_TO, w_OI, pre_TI,
                         dx_TI);
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  MEGATRON_EMULATED_CALL(LinearBackwardWeight, stream, dy_TO, x_TI, dw_OI, dbias_O);
}

void Float8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                   const Tensor& bias_N, const Tensor& c_MN) {
  MEGATRON_EMULATED_CALL(Float8Product, stream, a_MK, b_NK, bias_N, c_MN);
}

void AddFloat8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                      const Tensor& c_MN) {
  MEGATRON_EMULATED_CALL(AddFloat8Product, stream, a_MK, b_NK, c_MN);
}

}  // namespace megatron::ops::cuda
