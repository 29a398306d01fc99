#include "megatron/layers/linear_products.h"

#include "glog/logging.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/float8/quantize_blocks.h"

namespace megatron {
namespace {

constexpr Float8Format kOperandFormat = Float8Format::kE4M3;  // the format of x and of weights

Tensor AllocateScales(Arena* arena, const Shape& shape) {
  return arena->Allocate(DType::kFloat32, shape, "fp8 scales");
}

// The part of amax_2 that belongs to an operand; nothing of nothing.
Tensor Part(const Tensor& amax_2, int64_t operand) {
  return amax_2.empty() ? Tensor() : amax_2.Slice(0, operand, operand + 1);
}

// Returns memory for y that is contiguous: y itself, or that of ctx.scratch.
Tensor DenseMemory(const LayerContext& ctx, const Tensor& y_RC) {
  if (y_RC.is_contiguous()) return y_RC;
  return ctx.scratch->Allocate(y_RC.dtype(), y_RC.shape(), "fp8 dense rows");
}

// Returns x itself, or a copy that is contiguous.
Tensor Dense(const LayerContext& ctx, const Tensor& x_RC) {
  const Tensor dense_RC = DenseMemory(ctx, x_RC);
  if (!x_RC.is_contiguous()) ops::Copy(ctx.stream, x_RC, dense_RC);
  return dense_RC;
}

// Two forms of a tensor with one scale have the same.
void ShareScale(ops::Float8Matrix* form, const ops::Float8Matrix& other) {
  if (form->scaling == Float8Scaling::kTensor) form->inverse_scales = other.inverse_scales;
}

}  // namespace

LinearProducts::LinearProducts(const Float8Options& options, Cut cut, const std::string& name,
                               bool keep_codes)
    : options_(options), cut_(cut), keep_codes_(keep_codes && !reads_dy()) {
  const bool delayed = options.enabled && options.recipe == Float8Recipe::kDelayed;
  history_ = delayed ? CHECK_NOTNULL(options.history) : nullptr;
  if (delayed) index_ = history_->Add(name);
  if (options.enabled && options.weights != nullptr) options.weights->push_back(name);
}

LinearProducts::LinearProducts(const Float8Options& options, Cut cut, int64_t index,
                               bool keep_codes)
    : options_(options),
      cut_(cut),
      keep_codes_(keep_codes && !reads_dy()),
      keep_gradient_codes_(false),
      index_(index) {
  const bool delayed = options.enabled && options.recipe == Float8Recipe::kDelayed;
  history_ = delayed ? CHECK_NOTNULL(options.history) : nullptr;
}

// The rows that a rank keeps of x under sequence parallelism take no more memory than codes of all.
bool LinearProducts::keeps_codes(const LayerContext& ctx) const {
  return keep_codes_ && ctx.training && !(cut_ == Cut::kOutput && ctx.sequence_parallel);
}

ops::Float8Matrix LinearProducts::Allocate(Arena* arena, Operand operand, const Tensor& x_RC,
                                           Form form) const {
  const bool as_it_is = form == Form::kAsItIs;
  const int64_t rows = as_it_is ? x_RC.dim(0) : x_RC.dim(1);
  const int64_t columns = as_it_is ? x_RC.dim(1) : ops::Float8Padded(x_RC.dim(0));
  ops::Float8Matrix matrix;
  matrix.format = operand == kGradient ? options_.gradient : kOperandFormat;
  if (blockwise())
    matrix.scaling = operand == kWeight ? Float8Scaling::kBlocks : Float8Scaling::kVectors;
  matrix.codes = arena->Allocate(DType::kUInt8, {rows, columns}, "fp8 codes");
  matrix.inverse_scales =
      AllocateScales(arena, ops::Float8ScalesShape(matrix.scaling, rows, columns));
  return matrix;
}

Tensor LinearProducts::AmaxOfInputs(const LayerContext& ctx, const Tensor& x_TI,
                                    const Tensor& w_OI) const {
  if (blockwise()) return Tensor();
  if (predicts()) return history_->layer(index_).amax_3.Slice(0, kInput, kWeight + 1);
  const Tensor amax_2 = AllocateScales(ctx.saved, {2});
  const Tensor amax_x = Part(amax_2, kInput), amax_w = Part(amax_2, kWeight);
  ops::AbsMax(ctx.stream, x_TI, amax_x);
  ops::AbsMax(ctx.stream, w_OI, amax_w);
  ctx.tensor_group.AllReduce(amax_2, ReduceOp::kMax, ctx.stream);
  ctx.context_group.AllReduce(amax_x, ReduceOp::kMax, ctx.stream);
  return amax_2;
}

Tensor LinearProducts::AmaxOfGradient(const LayerContext& ctx, const Tensor& dy_TO,
                                      const Saved& saved) const {
  if (blockwise()) return Tensor();
  if (predicts()) return history_->layer(index_).amax_3.Slice(0, kGradient, kGradient + 1);
  const Tensor amax = saved.amax_dy_1;
  ops::AbsMax(ctx.stream, dy_TO, amax);
  if (cut_ != Cut::kInput) ctx.tensor_group.AllReduce(amax, ReduceOp::kMax, ctx.stream);
  ctx.context_group.AllReduce(amax, ReduceOp::kMax, ctx.stream);
  return amax;
}

void LinearProducts::Quantize(const LayerContext& ctx, Operand operand, const Tensor& x_RC,
                              const Tensor& amax_1, bool measures,
                              const ops::Float8Matrix& as_it_is,
                              const ops::Float8Matrix& transposed) const {
  if (blockwise()) {
    return ops::QuantizeBlocks(ctx.stream, x_RC, options_.power_of_two_scales, as_it_is,
                               transposed);
  }
  const ops::Float8Matrix& either = as_it_is.codes.empty() ? transposed : as_it_is;
  const ops::Float8Tensor out = {either.format, as_it_is.codes, transposed.codes,
                                 either.inverse_scales};
  if (!measures || history_ == nullptr) return ops::Quantize(ctx.stream, x_RC, amax_1, out);
  const Tensor seen = history_->layer(index_).seen_3.Slice(0, operand, operand + 1);
  ops::QuantizeAndMeasure(ctx.stream, x_RC, amax_1, out, seen);
}

ops::Float8Matrix LinearProducts::Transposed(const LayerContext& ctx, Operand operand,
                                             const Tensor& x_RC, const Tensor& amax_1) const {
  const ops::Float8Matrix out = Allocate(ctx.scratch, operand, x_RC, Form::kTransposed);
  Quantize(ctx, operand, x_RC, amax_1, /*measures=*/false, {}, out);
  return out;
}

LinearProducts::Pieces LinearProducts::Prepare(const LayerContext& ctx, const Tensor& x_TI,
                                               const Tensor& w_OI, bool at_once,
                                               Saved* saved) const {
  saved->amax_2 = AmaxOfInputs(ctx, x_TI, w_OI);
  saved->x_IT = {};
  if (keeps_codes(ctx)) saved->x_IT = Allocate(ctx.saved, kInput, x_TI, Form::kTransposed);
  Pieces pieces;
  if (at_once) {
    pieces.x_TI = Allocate(ctx.scratch, kInput, x_TI, Form::kAsItIs);
    if (!saved->x_IT.codes.empty()) ShareScale(&pieces.x_TI, saved->x_IT);
  }
  pieces.w_OI = Allocate(ctx.scratch, kWeight, w_OI, Form::kAsItIs);
  if (!pieces.x_TI.codes.empty() || !saved->x_IT.codes.empty()) {
    Quantize(ctx, kInput, x_TI, Part(saved->amax_2, kInput), ctx.training, pieces.x_TI,
             saved->x_IT);
  }
  Quantize(ctx, kWeight, w_OI, Part(saved->amax_2, kWeight), ctx.training, pieces.w_OI, {});
  return pieces;
}

LinearProducts::Pieces LinearProducts::Pieces::Rows(int64_t begin, int64_t end) const {
  Pieces rows = *this;
  if (!x_TI.codes.empty()) rows.x_TI.codes = x_TI.codes.Slice(0, begin, end);
  return rows;
}

LinearProducts::Pieces LinearProducts::StartForward(const LayerContext& ctx, const Tensor& x_TI,
                                                    const Tensor& w_OI, Saved* saved) const {
  if (!options_.enabled) return {};
  const bool has_all_rows = !(cut_ == Cut::kOutput && ctx.sequence_parallel);
  // The scales of rows lie apart, so that codes with scales for parts of x are not cut.
  return Prepare(ctx, Dense(ctx, x_TI), w_OI, /*at_once=*/has_all_rows && !blockwise(), saved);
}

void LinearProducts::Forward(const LayerContext& ctx, const Tensor& any_x_TI, const Tensor& w_OI,
                             const Tensor& bias_O, const Tensor& y_TO, Saved* saved,
                             const Pieces* pieces) const {
  if (!options_.enabled) return ops::LinearForward(ctx.stream, any_x_TI, w_OI, bias_O, y_TO);
  Arena::Scope scope(ctx.scratch);
  const Tensor dense_y_TO = DenseMemory(ctx, y_TO);
  Pieces operands;
  if (pieces == nullptr) {
    operands = Prepare(ctx, Dense(ctx, any_x_TI), w_OI, /*at_once=*/true, saved);
  } else {
    operands = *pieces;
  }
  if (operands.x_TI.codes.empty()) {
    const Tensor x_TI = Dense(ctx, any_x_TI);
    operands.x_TI = Allocate(ctx.scratch, kInput, x_TI, Form::kAsItIs);
    Quantize(ctx, kInput, x_TI, Part(saved->amax_2, kInput), ctx.training, operands.x_TI, {});
  }
  ops::Float8Product(ctx.stream, operands.x_TI, operands.w_OI, bias_O, dense_y_TO);
  if (!y_TO.is_contiguous()) ops::Copy(ctx.stream, dense_y_TO, y_TO);
}

// The multiple that a product on CUDA needs where parts of x have scales (ops/float8/product.h).
int64_t LinearProducts::row_multiple() const { return options_.enabled && blockwise() ? 4 : 1; }

void LinearProducts::Reserve(const LayerContext& ctx, const Tensor& dy_TO, Saved* saved) const {
  saved->dy_OT = {};
  if (options_.enabled && !blockwise()) saved->amax_dy_1 = AllocateScales(ctx.kept(), {1});
  if (!reads_dy() && keep_gradient_codes_)
    saved->dy_OT = Allocate(ctx.kept(), kGradient, dy_TO, Form::kTransposed);
}

void LinearProducts::BackwardInput(const LayerContext& ctx, const Tensor& any_dy_TO,
                                   const Tensor& w_OI, const Tensor& dx_TI, Saved* saved) const {
  if (!options_.enabled) return ops::LinearBackwardInput(ctx.stream, any_dy_TO, w_OI, dx_TI);
  Arena::Scope scope(ctx.scratch);
  const Tensor dy_TO = Dense(ctx, any_dy_TO), dense_dx_TI = DenseMemory(ctx, dx_TI);
  saved->amax_dy_1 = AmaxOfGradient(ctx, dy_TO, *saved);
  ops::Float8Matrix dy = Allocate(ctx.scratch, kGradient, dy_TO, Form::kAsItIs);
  if (!saved->dy_OT.codes.empty()) ShareScale(&dy, saved->dy_OT);
  Quantize(ctx, kGradient, dy_TO, saved->amax_dy_1, /*measures=*/true, dy, saved->dy_OT);
  ops::Float8Product(ctx.stream, dy, Transposed(ctx, kWeight, w_OI, Part(saved->amax_2, kWeight)),
                     Tensor(), dense_dx_TI);
  if (!dx_TI.is_contiguous()) ops::Copy(ctx.stream, dense_dx_TI, dx_TI);
}

void LinearProducts::BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO,
                                    const Tensor& x_TI, const Tensor& dw_OI, const Tensor& dbias_O,
                                    const Saved& saved) const {
  if (reads_dy()) return ops::LinearBackwardWeight(ctx.stream, dy_TO, x_TI, dw_OI, dbias_O);
  Arena::Scope scope(ctx.scratch);
  const ops::Float8Matrix x_IT =
      !saved.x_IT.codes.empty()
          ? saved.x_IT
          : Transposed(ctx, kInput, Dense(ctx, x_TI), Part(saved.amax_2, kInput));
  const ops::Float8Matrix dy_OT =
      keep_gradient_codes_ ? saved.dy_OT
                           : Transposed(ctx, kGradient, Dense(ctx, dy_TO), saved.amax_dy_1);
  ops::AddFloat8Product(ctx.stream, dy_OT, x_IT, dw_OI);
  if (!dbias_O.empty()) ops::BiasBackward(ctx.stream, dy_TO, dbias_O);
}

void LinearProducts::ForwardActivation(const LayerContext& ctx, ops::Activation activation,
                                       const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                                       const Tensor& pre_TO, const Tensor& y_TO, Saved* saved,
                                       const Pieces* pieces) const {
  if (!options_.enabled) {
    return ops::LinearActivationForward(ctx.stream, activation, x_TI, w_OI, bias_O, pre_TO, y_TO);
  }
  Forward(ctx, x_TI, w_OI, bias_O, pre_TO, saved, pieces);
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
