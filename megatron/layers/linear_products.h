// The matrix products of a linear layer: in the dtype of its weight, or in 8-bit floats (*FP8*).
//
// For a product in FP8 both operands are quantized, each with one scale, from its largest magnitude
// (ops/float8). Where ranks hold parts of one tensor, cut along features or by the micro-batch's
// tokens, that is the largest of all parts: so the codes do not depend on the layout. Only the
// operands are FP8: results, biases and their gradients, and sums of weight gradients are what they
// are without it.
//
// Legend: T tokens, I input features, O output features, both of this rank.
#ifndef MEGATRON_LAYERS_LINEAR_PRODUCTS_H_
#define MEGATRON_LAYERS_LINEAR_PRODUCTS_H_

#include "megatron/layers/float8_options.h"
#include "megatron/layers/layer_context.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class LinearProducts {
 public:
  // The side that is cut over the tensor-parallel ranks besides the weight: x or y.
  enum class Cut { kInput, kOutput };

  struct Saved {
    Tensor amax_2;         // the largest magnitudes of x and of the weight
    ops::Float8Tensor dy;  // transposed, for the weight's gradient
  };

  LinearProducts(const Float8Options& options, Cut cut) : options_(options), cut_(cut) {}

  // Returns whether BackwardWeight reads dy for more than a bias's gradient.
  bool reads_dy() const { return !(options_.enabled && options_.weight_gradient); }

  // The products of ops/linear.h. What `saved` gets lies in ctx.saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
               const Tensor& bias_O, const Tensor& y_TO, Saved* saved) const;
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
                         const Tensor& y_TO, Saved* saved) const;
  void BackwardInputActivation(const LayerContext& ctx, ops::Activation activation,
                               const Tensor& dy_TO, const Tensor& w_OI, const Tensor& pre_TI,
                               const Tensor& dx_TI, const Tensor& dbias_I, Saved* saved) const;

 private:
  Float8Options options_;
  Cut cut_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LINEAR_PRODUCTS_H_
