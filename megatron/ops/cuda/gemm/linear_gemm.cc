#include "megatron/ops/cuda/gemm/linear_gemm.h"

#include <cstdint>
#include <initializer_list>

#include "glog/logging.h"

namespace megatron::ops::cuda {
namespace {

// Returns the common alignment of the addresses, up to 16 bytes.
int64_t AlignmentOf(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return static_cast<int64_t>(bits & -bits);
}

LinearGemm WithAlignment(const Gemm& gemm, const GemmOperands& at) {
  LinearGemm out = {gemm, at};
  out.gemm.alignment = AlignmentOf({at.a, at.b, at.c, at.aux});
  if (at.bias != nullptr || at.sums != nullptr)
    out.gemm.bias_alignment = AlignmentOf({at.bias, at.sums});
  return out;
}

}  // namespace

LinearGemm ForwardGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                       const Tensor& y_TO) {
  Gemm gemm;
  gemm.m = w_OI.dim(0);
  gemm.n = x_TI.dim(0);
  gemm.k = w_OI.dim(1);
  gemm.in = gemm.out = x_TI.dtype();
  gemm.transpose_a = true;
  gemm.lda = w_OI.dim(1);
  gemm.ldb = x_TI.stride(0);
  gemm.ldc = y_TO.stride(0);
  return WithAlignment(gemm, {w_OI.raw(), x_TI.raw(), bias_O.raw(), y_TO.raw()});
}

LinearGemm BackwardInputGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& dx_TI) {
  Gemm gemm;
  gemm.m = w_OI.dim(1);
  gemm.n = dy_TO.dim(0);
  gemm.k = w_OI.dim(0);
  gemm.in = gemm.out = dy_TO.dtype();
  gemm.lda = w_OI.dim(1);
  gemm.ldb = dy_TO.stride(0);
  gemm.ldc = dx_TI.stride(0);
  return WithAlignment(gemm, {w_OI.raw(), dy_TO.raw(), nullptr, dx_TI.raw()});
}

LinearGemm BackwardWeightGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI) {
  Gemm gemm;
  gemm.m = x_TI.dim(1);
  gemm.n = dy_TO.dim(1);
  gemm.k = dy_TO.dim(0);
  gemm.in = dy_TO.dtype();
  gemm.out = DType::kFloat32;
  gemm.transpose_b = true;
  gemm.lda = x_TI.stride(0);
  gemm.ldb = dy_TO.stride(0);
  gemm.ldc = x_TI.dim(1);
  gemm.accumulate = true;
  return WithAlignment(gemm, {x_TI.raw(), dy_TO.raw(), nullptr, dw_OI.raw()});
}

LinearGemm Float8Gemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& bias_N,
                      const Tensor& c_MN) {
  Gemm gemm;
  gemm.m = b_NK.codes.dim(0);
  gemm.n = a_MK.codes.dim(0);
  gemm.k = a_MK.codes.dim(1);
  gemm.in = DType::kUInt8;
  gemm.out = c_MN.dtype();
  gemm.a_format = b_NK.format;
  gemm.b_format = a_MK.format;
  gemm.a_scaling = b_NK.scaling;
  gemm.b_scaling = a_MK.scaling;
  gemm.transpose_a = true;
  gemm.lda = gemm.ldb = gemm.k;
  gemm.ldc = gemm.m;
  GemmOperands at = {b_NK.codes.raw(), a_MK.codes.raw(), bias_N.raw(), c_MN.raw()};
  at.a_inverse_scale = b_NK.inverse_scales.raw();
  at.b_inverse_scale = a_MK.inverse_scales.raw();
  return WithAlignment(gemm, at);
}

LinearGemm Float8AddGemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& c_MN) {
  LinearGemm linear = Float8Gemm(a_MK, b_NK, Tensor(), c_MN);
  linear.gemm.accumulate = true;
  return linear;
}

LinearGemm BackwardWeightAndBiasGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI,
                                     const Tensor& sums_O) {
  LinearGemm out = BackwardWeightGemm(dy_TO, x_TI, dw_OI);
  out.gemm.epilogue = GemmEpilogue::kBiasGradient;
  out.operands.sums = sums_O.raw();
  return WithAlignment(out.gemm, out.operands);
}

LinearGemm ForwardGeluGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                           const Tensor& pre_TO, const Tensor& y_TO) {
  CHECK(pre_TO.is_contiguous()) << pre_TO;
  LinearGemm out = ForwardGemm(x_TI, w_OI, bias_O, y_TO);
  out.gemm.epilogue = GemmEpilogue::kGelu;
  out.operands.aux = pre_TO.raw();
  return WithAlignment(out.gemm, out.operands);
}

LinearGemm BackwardInputGeluGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& pre_TI,
                                 const Tensor& dx_TI, const Tensor& sums_I) {
  CHECK(pre_TI.is_contiguous()) << pre_TI;
  LinearGemm out = BackwardInputGemm(dy_TO, w_OI, dx_TI);
  out.gemm.epilogue = GemmEpilogue::kGeluSlope;
  out.operands.aux = pre_TI.raw();
  out.operands.sums = sums_I.raw();
  return WithAlignment(out.gemm, out.operands);
}

}  // namespace megatron::ops::cuda
