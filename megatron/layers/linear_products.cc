#include "megatron/layers/linear_products.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/float8/quantize.h"

namespace megatron {
namespace {

constexpr Float8Format kOperandFormat = Float8Format::kE4M3;  // the format of x and of weights

Tensor AllocateScale(Arena* arena) { return arena->Allocate(DType::kFloat32, {1}, "fp8 scales"); }
Tensor AllocateCodes(Arena* arena, int64_t rows, int64_t columns) {
  return arena->Allocate(DType::kUInt8, {rows, columns}, "fp8 codes");
}
Tensor AllocateTransposed(Arena* arena, const Tensor& x_RC) {
  return AllocateCodes(arena, x_RC.dim(1), ops::Float8Padded(x_RC.dim(0)));
}

// Room in ctx.scratch for products that sum over x's columns and over its rows.
ops::Float8Matrix Quantized(const LayerContext& ctx, const Tensor& x_RC, const Tensor& amax_1) {
  const ops::Float8Tensor out = {kOperandFormat,
                                 AllocateCodes(ctx.scratch, x_RC.dim(0), x_RC.dim(1)), Tensor(),
                                 AllocateScale(ctx.scratch)};
  ops::Quantize(ctx.stream, x_RC, amax_1, out);
  return out.AsItIs();
}
ops::Float8Matrix QuantizedTransposed(const LayerContext& ctx, const Tensor& x_RC,
                                      const Tensor& amax_1) {
  const ops::Float8Tensor out = {kOperandFormat, Tensor(), AllocateTransposed(ctx.scratch, x_RC),
                                 AllocateScale(ctx.scratch)};
  ops::Quantize(ctx.stream, x_RC, amax_1, out);
  return out.Transposed();
}

}  // namespace

void LinearProducts::Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
                             const Tensor& bias_O, const Tensor& y_TO, Saved* saved) const {
  if (!options_.enabled) return ops::LinearForward(ctx.stream, x_TI, w_OI, bias_O, y_TO);
  Arena::Scope scope(ctx.scratch);
  saved->amax_2 = ctx.saved->Allocate(DType::kFloat32, {2}, "fp8 scales");
  const Tensor amax_x = saved->amax_2.Slice(0, 0, 1), amax_w = saved->amax_2.Slice(0, 1, 2);
  ops::AbsMax(ctx.stream, x_TI, amax_x);
  ops::AbsMax(ctx.stream, w_OI, amax_w);
  ctx.tensor_group.AllReduce(saved->amax_2, ReduceOp::kMax, ctx.stream);
  ctx.context_group.AllReduce(amax_x, ReduceOp::kMax, ctx.stream);
  ops::Float8Product(ctx.stream, Quantized(ctx, x_TI, amax_x), Quantized(ctx, w_OI, amax_w), bias_O,
                     y_TO);
}

void LinearProducts::Reserve(const LayerContext& ctx, const Tensor& dy_TO, Saved* saved) const {
  if (!options_.enabled) return;
  saved->dy.format = options_.gradient;
  saved->dy.inverse_scale_1 = AllocateScale(ctx.kept());
  if (!reads_dy()) saved->dy.codes_CS = AllocateTransposed(ctx.kept(), dy_TO);
}

void LinearProducts::BackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& w_OI,
                                   const Tensor& dx_TI, Saved* saved) const {
  if (!options_.enabled) return ops::LinearBackwardInput(ctx.stream, dy_TO, w_OI, dx_TI);
  Arena::Scope scope(ctx.scratch);
  const Tensor amax = AllocateScale(ctx.scratch);
  ops::AbsMax(ctx.stream, dy_TO, amax);
  if (cut_ == Cut::kOutput) ctx.tensor_group.AllReduce(amax, ReduceOp::kMax, ctx.stream);
  ctx.context_group.AllReduce(amax, ReduceOp::kMax, ctx.stream);
  ops::Float8Tensor dy = saved->dy;
  dy.codes_RC = AllocateCodes(ctx.scratch, dy_TO.dim(0), dy_TO.dim(1));
  ops::Quantize(ctx.stream, dy_TO, amax, dy);
  ops::Float8Product(ctx.stream, dy.AsItIs(),
                     QuantizedTransposed(ctx, w_OI, saved->amax_2.Slice(0, 1, 2)), Tensor(), dx_TI);
}

void LinearProducts::BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO,
                                    const Tensor& x_TI, const Tensor& dw_OI, const Tensor& dbias_O,
                                    const Saved& saved) const {
  if (reads_dy()) return ops::LinearBackwardWeight(ctx.stream, dy_TO, x_TI, dw_OI, dbias_O);
  Arena::Scope scope(ctx.scratch);
  const ops::Float8Matrix x_IT = QuantizedTransposed(ctx, x_TI, saved.amax_2.Slice(0, 0, 1));
  ops::AddFloat8Product(ctx.stream, saved.dy.Transposed(), x_IT, dw_OI);
  if (!dbias_O.empty()) ops::BiasBackward(ctx.stream, dy_TO, dbias_O);
}

void LinearProducts::ForwardActivation(const LayerContext& ctx, ops::Activation activation,
                                       const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                                       const Tensor& pre_TO, const Tensor& y_TO,
                                       Saved* saved) const {
  if (!options_.enabled) {
    return ops::LinearActivationForward(ctx.stream, activation, x_TI, w_OI, bias_O, pre_TO, y_TO);
  }
  Forward(ctx, x_TI, w_OI, bias_O, pre_TO, saved);
  ops::ActivationForward(ctx.stream, activation, pre_TO, y_TO);
}

void LinearProducts::BackwardInputActivation(const LayerContext& ctx, ops::Activation activation,
                                             const Tensor& dy_TO, const Tensor& w_OI,
                                             const Tensor& pre_TI, const Tensor& dx_TI,
                                             const Tensor& dbias_I, Saved* saved) const {
  if (!options_.enabled) {
    return ops::LinearActivationBackwardInput(ctx.stream, activation, dy_TO, w_OI, pre_TI, dx_TI,
                                              dbias_I);
  }
  BackwardInput(ctx, dy_TO, w_OI, dx_TI, saved);
  if (dbias_I.empty()) {
    ops::ActivationBackward(ctx.stream, activation, dx_TI, pre_TI, dx_TI);
  } else {
    ops::ActivationBackwardAndBias(ctx.stream, activation, dx_TI, pre_TI, dx_TI, dbias_I);
  }
}

}  // namespace megatron
