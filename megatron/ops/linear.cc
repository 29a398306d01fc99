#include "megatron/ops/linear.h"

#include "glog/logging.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/gemm.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// A 2-D tensor whose rows may have a stride.
void CheckRows(const Stream& stream, const Tensor& tensor, DType dtype, int64_t rows,
               int64_t columns) {
  CheckTensor(stream, tensor, dtype, {rows, columns});
  CHECK(columns <= 1 || tensor.stride(1) == 1) << tensor;
}

void CheckBias(const Stream& stream, const Tensor& bias, DType dtype, int64_t size) {
  if (!bias.empty()) CheckContiguous(stream, bias, dtype, {size});
}

GemmOperand Operand(const Tensor& x) { return {x.raw(), x.stride(0), 1}; }
GemmOperand Transposed(const Tensor& x) { return {x.raw(), 1, x.stride(0)}; }
GemmResult Result(const Tensor& x) { return {x.raw(), x.stride(0)}; }

// The product y = x w^T; the caller fills in the rest.
Gemm ForwardGemm(const Stream& stream, const Tensor& x, const Tensor& w, const Tensor& bias,
                 const Tensor& y) {
  CheckFloating(x);
  const int64_t tokens = x.dim(0), in = x.dim(1), out = w.dim(0);
  CheckRows(stream, x, x.dtype(), tokens, in);
  CheckContiguous(stream, w, x.dtype(), {out, in});
  CheckBias(stream, bias, x.dtype(), out);
  CheckRows(stream, y, x.dtype(), tokens, out);
  Gemm gemm;
  gemm.m = tokens;
  gemm.n = out;
  gemm.k = in;
  gemm.dtype = x.dtype();
  gemm.a = Operand(x);
  gemm.b = Transposed(w);
  gemm.bias = bias.raw();
  gemm.c = Result(y);
  return gemm;
}

// dx = dy w.
Gemm BackwardInputGemm(const Stream& stream, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  CheckFloating(dy);
  const int64_t tokens = dy.dim(0), in = w.dim(1), out = dy.dim(1);
  CheckRows(stream, dy, dy.dtype(), tokens, out);
  CheckContiguous(stream, w, dy.dtype(), {out, in});
  CheckRows(stream, dx, dy.dtype(), tokens, in);
  Gemm gemm;
  gemm.m = tokens;
  gemm.n = in;
  gemm.k = out;
  gemm.dtype = dy.dtype();
  gemm.a = Operand(dy);
  gemm.b = Operand(w);
  gemm.c = Result(dx);
  return gemm;
}

}  // namespace

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  const Gemm gemm = ForwardGemm(stream, x_TI, w_OI, bias_O, y_TO);
  if (RunsOnCuda(stream)) return OnCuda<LinearForward>(stream, x_TI, w_OI, bias_O, y_TO);
  if (RunsOnCpu(stream)) RunGemm(stream.pool(), gemm);
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  Gemm gemm = ForwardGemm(stream, x_TI, w_OI, bias_O, y_TO);
  CheckRows(stream, pre_TO, gemm.dtype, gemm.m, gemm.n);
  gemm.epilogue = GemmEpilogue::kActivate;
  gemm.activation = activation;
  gemm.pre = Result(pre_TO);
  if (RunsOnCuda(stream)) {
    return OnCuda<LinearActivationForward>(stream, activation, x_TI, w_OI, bias_O, pre_TO, y_TO);
  }
  if (RunsOnCpu(stream)) RunGemm(stream.pool(), gemm);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  const Gemm gemm = BackwardInputGemm(stream, dy_TO, w_OI, dx_TI);
  if (RunsOnCuda(stream)) return OnCuda<LinearBackwardInput>(stream, dy_TO, w_OI, dx_TI);
  if (RunsOnCpu(stream)) RunGemm(stream.pool(), gemm);
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI,
                                   const Tensor& dbias_I) {
  Gemm gemm = BackwardInputGemm(stream, dy_TO, w_OI, dx_TI);
  CheckRows(stream, pre_TI, gemm.dtype, gemm.m, gemm.n);
  CheckBias(stream, dbias_I, DType::kFloat32, gemm.n);
  gemm.epilogue = GemmEpilogue::kSlope;
  gemm.activation = activation;
  gemm.pre = Result(pre_TI);
  if (RunsOnCuda(stream)) {
    return OnCuda<LinearActivationBackwardInput>(stream, activation, dy_TO, w_OI, pre_TI, dx_TI,
                                                 dbias_I);
  }
  if (RunsOnCpu(stream)) RunGemm(stream.pool(), gemm);
  if (!dbias_I.empty()) BiasBackward(stream, dx_TI, dbias_I);
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  CheckFloating(dy_TO);
  const int64_t tokens = dy_TO.dim(0), in = x_TI.dim(1), out = dy_TO.dim(1);
  CheckRows(stream, dy_TO, dy_TO.dtype(), tokens, out);
  CheckRows(stream, x_TI, dy_TO.dtype(), tokens, in);
  CheckContiguous(stream, dw_OI, DType::kFloat32, {out, in});
  CheckBias(stream, dbias_O, DType::kFloat32, out);
  Gemm gemm;
  gemm.m = out;
  gemm.n = in;
  gemm.k = tokens;
  gemm.dtype = dy_TO.dtype();
  gemm.a = Transposed(dy_TO);
  gemm.b = Operand(x_TI);
  gemm.epilogue = GemmEpilogue::kAccumulate;
  gemm.c = Result(dw_OI);
  gemm.row_sums = static_cast<float*>(dbias_O.raw());
  if (RunsOnCuda(stream)) return OnCuda<LinearBackwardWeight>(stream, dy_TO, x_TI, dw_OI, dbias_O);
  if (RunsOnCpu(stream)) RunGemm(stream.pool(), gemm);
}

}  // namespace megatron::ops
