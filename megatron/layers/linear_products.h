// The matrix products of a linear layer: in the dtype of its weight, or in 8-bit floats (*FP8*).
//
// For a product in FP8 both operands are quantized (ops/float8). The recipe (float8_options.h) says
// what scales are made of; where that is the tensor's own largest magnitude, and ranks hold parts
// of the tensor, cut along features or by the micro-batch's tokens, it is the largest of all parts:
// so the codes do not depend on the layout. Only the operands are FP8: results, biases and their
// gradients, and sums of weight gradients are what they are without it.
//
// Legend: T tokens, I input features, O output features, both of this rank.
#ifndef MEGATRON_LAYERS_LINEAR_PRODUCTS_H_
#define MEGATRON_LAYERS_LINEAR_PRODUCTS_H_

#include <cstdint>
#include <string>

#include "megatron/layers/float8_history.h"
#include "megatron/layers/float8_options.h"
#include "megatron/layers/layer_context.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class LinearProducts {
 public:
  // The side that is cut over the tensor-parallel ranks besides the weight: x or y. With kRows each
  // of them has the whole weight, and with sequence parallelism rows of its own of x and y.
  enum class Cut { kInput, kOutput, kRows };

  struct Saved {
    // What the scales of x and of the weight are made of, and that of dy; none with kBlockwise.
    Tensor amax_2, amax_dy_1;
    ops::Float8Matrix x_IT, dy_OT;  // for the weight's gradient; x only where codes are kept
  };

  // The codes that the pieces of one forward product share; none where products are not in FP8.
  struct Pieces {
    // Returns what the piece of these rows reads.
    Pieces Rows(int64_t begin, int64_t end) const;

    ops::Float8Matrix w_OI;
    ops::Float8Matrix x_TI;  // none where each piece makes its own
  };

  // `name` is that of the weight; Float8History knows the layer by it. With `keep_codes`, forward
  // keeps the codes of x for BackwardWeight, where it needs no more of x than those.
  LinearProducts(const Float8Options& options, Cut cut, const std::string& name,
                 bool keep_codes = false);
  // The products of one of a weight's matrices, an expert's, whose place in options.history is
  // `index`. It keeps no codes of dy: BackwardWeight makes them anew.
  LinearProducts(const Float8Options& options, Cut cut, int64_t index, bool keep_codes = false);

  // Returns whether BackwardWeight reads dy for more than a bias's gradient.
  bool reads_dy() const { return !(options_.enabled && options_.weight_gradient); }

  // Returns whether x need not outlive Forward; BackwardWeight then does not read it.
  bool keeps_codes(const LayerContext& ctx) const;

  // The products of ops/linear.h. What `saved` gets lies in ctx.saved. The rows of operands and
  // results may lie apart: products in FP8 then work on copies in ctx.scratch. With `pieces`, x and
  // y are the rows of a piece, for which Rows() returned it, and StartForward has filled in *saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
               const Tensor& bias_O, const Tensor& y_TO, Saved* saved,
               const Pieces* pieces = nullptr) const;
  // Prepares a forward product in pieces of rows: calls of Forward or ForwardActivation that
  // together give the bits of one for all rows. x is all rows; with Cut::kOutput under sequence
  // parallelism it is this rank's, and pieces are of all ranks' rows. What is returned lies in
  // ctx.scratch.
  Pieces StartForward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
                      Saved* saved) const;
  // Returns the number at whose multiples pieces have to begin.
  int64_t row_multiple() const;
  // Takes room in ctx.kept() for what BackwardInput leaves to BackwardWeight. It is called before
  // BackwardInput, outside of any scope that ends before BackwardWeight.
  void Reserve(const LayerContext& ctx, const Tensor& dy_TO, Saved* saved) const;
  void BackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& w_OI,
                     const Tensor& dx_TI, Saved* saved) const;
  void BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& x_TI,
                      const Tensor& dw_OI, const Tensor& dbias_O, const Saved& saved) const;
  // The same with the activation behind the product, or in front of it. dbias += column sums of dx,
  // unless it is empty (ops::ActivationBackwardAndBias).
  void ForwardActivation(const LayerContext& ctx, ops::Activation activation, const Tensor& x_TI,
                         const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                         const Tensor& y_TO, Saved* saved, const Pieces* pieces = nullptr) const;
  void BackwardInputActivation(const LayerContext& ctx, ops::Activation activation,
                               const Tensor& dy_TO, const Tensor& w_OI, const Tensor& pre_TI,
                               const Tensor& dx_TI, const Tensor& dbias_I, Saved* saved) const;

 private:
  enum Operand { kInput, kWeight, kGradient };
  enum class Form { kAsItIs, kTransposed };

  bool blockwise() const { return options_.recipe == Float8Recipe::kBlockwise; }
  // Whether scales are made of earlier steps.
  bool predicts() const { return history_ != nullptr && history_->known(); }
  ops::Float8Matrix Allocate(Arena* arena, Operand operand, const Tensor& x_RC, Form form) const;
  // Return what scales are made of.
  Tensor AmaxOfInputs(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI) const;
  Tensor AmaxOfGradient(const LayerContext& ctx, const Tensor& dy_TO, const Saved& saved) const;
  // Writes the codes of x in the forms that have room for them. `measures`: the history, if there
  // is one, gets to know the operand's largest magnitude.
  void Quantize(const LayerContext& ctx, Operand operand, const Tensor& x_RC, const Tensor& amax_1,
                bool measures, const ops::Float8Matrix& as_it_is,
                const ops::Float8Matrix& transposed) const;
  // Fills in *saved, and returns the codes in ctx.scratch; those of x only where `at_once`.
  Pieces Prepare(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI, bool at_once,
                 Saved* saved) const;
  // Returns the transposed form in ctx.scratch.
  ops::Float8Matrix Transposed(const LayerContext& ctx, Operand operand, const Tensor& x_RC,
                               const Tensor& amax_1) const;

  Float8Options options_;
  Cut cut_;
  bool keep_codes_ = false, keep_gradient_codes_ = true;
  Float8History* history_;  // null: scales are not made of earlier steps
  int64_t index_ = 0;       // the layer's number in the history
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LINEAR_PRODUCTS_H_
