// Linear layers whose weight is cut over the tensor-parallel ranks.
//
// Column: the output features are cut; every rank reads the whole input and writes its features.
// Row: the input features are cut; every rank's product is a summand of the whole output. A column
// layer into a row layer needs one sum forward and one backward. A column layer's input and a row
// layer's output are rows of the residual stream, and so under sequence parallelism this rank's.
//
// On a grid of ranks (tensor_grid.h) both are cut along both dims, and read and write this rank's
// columns of x and y (grid_products.h); in a cube a column layer goes from the residual layout to
// the inner one, and a row layer back. The bias of a column layer in a cube is whole on every rank,
// which reads its outputs' part and adds to that part of the gradient.
//
// Legend: T tokens, I input features, O output features, both of this rank.
#ifndef MEGATRON_LAYERS_PARALLEL_LINEAR_H_
#define MEGATRON_LAYERS_PARALLEL_LINEAR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/linear_products.h"
#include "megatron/layers/lora_options.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// The part of a column layer's output_shape that a rank holds, where that is not an even cut along
// one dim; `replicas` consecutive tensor-parallel ranks hold the same part.
struct OutputBlock {
  Shape offset, shape;
  int replicas = 1;
};

struct LinearOptions {
  std::string name;  // "decoder.layers.0.mlp.linear_fc1"
  int64_t input_size = 0;
  // One dim, or several of which one is cut: [groups, heads a group + 2, head size], [2, ffn].
  Shape output_shape;
  int split_dim = 0;                 // the dim of output_shape that is cut; column layers only
  std::optional<OutputBlock> block;  // where set, counts in place of split_dim
  MatrixDims matrix;                 // what the dims of output_shape are to optimizers
  std::optional<int64_t> attention_layer;  // see Parameter
  bool bias = true;
  bool sequence_parallel = false;  // whether a row layer's bias meets this rank's rows only
  float init_std = 0.02f;
  Float8Options float8;
  // Whether forward communicates beside its products, in pieces (tensor_overlap.h).
  bool overlap = false;
  // Whether a column layer sums dx over the tensor-parallel ranks. Else dx is this rank's summand,
  // and the context must be without sequence parallelism.
  bool sums_input_gradient = true;
  // Whether codes of the input are kept for backward, where that is done in FP8, and not the input.
  // An adapter reads the input, so that none are kept with one.
  bool keep_codes = false;
  // Not with `block`: an adapter adds to whole rows of y.
  LowRankOptions adapter;
  // Without `block`, `sequence_parallel`, `float8`, `overlap` and `adapter`. In a cube a column
  // layer that has a bias is cut along dim 0.
  TensorGrid grid;
};

struct LinearSaved {
  // A column layer's x as it came, not gathered. Empty where codes are kept in its place.
  Tensor x_TI;
  // All rows of a column layer's x, and the call that gathers them, from BackwardInput to
  // BackwardWeight where !ctx.defers().
  Tensor all_TI;
  AsyncCall gathering;
  // A column layer's dy as it came. A row layer's dy of all tokens, or where ctx.defers() as it
  // came.
  Tensor dy_TO;
  // Whether the caller of a column layer has added the bias's gradient, so that BackwardWeight does
  // not.
  bool bias_is_done = false;
  LinearProducts::Saved products;
};

class ColumnParallelLinear {
 public:
  ColumnParallelLinear(const LinearOptions& options, const ProcessGroup& tensor_group);

  // Returns whether x need not outlive Forward.
  bool keeps_codes(const LayerContext& ctx) const { return products_.keeps_codes(ctx); }
  int64_t output_size() const { return weight_.sharding.local_shape.numel() / input_size_; }
  // This rank's weight.
  Tensor weight_OI() const { return weight_.data.View({output_size(), input_size_}); }

  void Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
               LinearSaved* saved) const;
  // Writes pre and y = activation(pre).
  void ForwardActivation(const LayerContext& ctx, ops::Activation activation, const Tensor& x_TI,
                         const Tensor& pre_TO, const Tensor& y_TO, LinearSaved* saved) const;
  // Starts to write dx, by default summed over the tensor-parallel ranks, which is there once the
  // result has been waited for: behind BackwardWeight, whose product hides the sum's time. dy must
  // live until BackwardWeight has run; both calls must have the same ctx.defers(). Whatever else it
  // keeps lies in ctx.kept() and, until both are done, in ctx.scratch, where the caller's scope
  // must hold it.
  [[nodiscard]] AsyncCall BackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                        const Tensor& dx_TI, LinearSaved* saved) const;
  void BackwardWeight(const LayerContext& ctx, const LinearSaved& saved);

  Tensor bias_gradient() const {
    return has_bias_ && !bias_.frozen ? BiasPart(bias_.grad) : Tensor();
  }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  using RowsProduct =
      absl::FunctionRef<void(const Tensor& x_TI, const Tensor& pre_TO, const Tensor& y_TO,
                             const LinearProducts::Pieces* pieces)>;
  // Calls product with rows of x and the same rows of pre and y, until it has had all of them.
  void ForAllRows(const LayerContext& ctx, const Tensor& x_TI, const Tensor& pre_TO,
                  const Tensor& y_TO, LinearSaved* saved, RowsProduct product) const;
  Tensor bias_O() const { return has_bias_ ? BiasPart(bias_.data) : Tensor(); }
  // The part of the bias, or of its gradient, that goes with this rank's outputs.
  Tensor BiasPart(const Tensor& bias) const {
    return grid_.is_cube ? bias.Flatten().Slice(0, grid_.row * bias.numel() / grid_.side,
                                                (grid_.row + 1) * bias.numel() / grid_.side)
                         : bias.Flatten();
  }

  TensorGrid grid_;
  int64_t input_size_;  // that of this rank's weight
  bool has_bias_, overlaps_, sums_input_gradient_;
  LinearProducts products_;
  Parameter weight_, bias_;
  LowRankAdapter adapter_;
};

class RowParallelLinear {
 public:
  RowParallelLinear(const LinearOptions& options, const ProcessGroup& tensor_group);

  bool keeps_codes(const LayerContext& ctx) const { return products_.keeps_codes(ctx); }

  // Writes y without the bias, which the caller fuses into what follows: see bias() and
  // bias_gradient().
  void Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
               LinearSaved* saved) const;
  // dy must live until BackwardWeight has run; both calls must have the same ctx.defers(). The rows
  // of dy that these two gather lie in ctx.scratch, where the caller's scope must hold them until
  // then; where ctx.defers(), BackwardWeight gathers them again.
  void BackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& dx_TI,
                     LinearSaved* saved) const;
  // Writes dx, the gradient in front of the activation that made x from `pre`, and adds its column
  // sums to dbias, unless that is empty.
  void BackwardInputActivation(const LayerContext& ctx, ops::Activation activation,
                               const Tensor& dy_TO, const Tensor& pre_TI, const Tensor& dx_TI,
                               const Tensor& dbias_I, LinearSaved* saved) const;
  void BackwardWeight(const LayerContext& ctx, const LinearSaved& saved);

  Tensor bias() const { return has_bias_ ? bias_.data : Tensor(); }
  Tensor bias_gradient() const { return has_bias_ && !bias_.frozen ? bias_.grad : Tensor(); }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // Returns all rows of dy, and puts into *saved what BackwardWeight needs of them.
  Tensor KeepGradient(const LayerContext& ctx, const Tensor& dy_TO, LinearSaved* saved) const;

  bool has_bias_, overlaps_;
  LinearProducts products_;
  Parameter weight_, bias_;
  LowRankAdapter adapter_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_PARALLEL_LINEAR_H_
