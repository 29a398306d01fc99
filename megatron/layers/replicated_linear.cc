#include "megatron/layers/replicated_linear.h"

#include "megatron/layers/linear_gradients.h"
#include "megatron/ops/linear.h"

namespace megatron {

ReplicatedLinear::ReplicatedLinear(const ReplicatedLinearOptions& options) {
  weight_.name = options.name + ".weight";
  weight_.sharding = Replicated({options.output_size, options.input_size},
                                options.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{});
  weight_.initializer = Initializer::Normal(options.init_std);
  weight_.matrix = MatrixDims();
}

void ReplicatedLinear::Forward(const LayerContext& ctx, const Tensor& x_TI,
                               const Tensor& y_TO) const {
  ops::LinearForward(ctx.stream, x_TI, weight_.data, Tensor(), y_TO);
}

void ReplicatedLinear::BackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                     const Tensor& dx_TI) const {
  ops::LinearBackwardInput(ctx.stream, dy_TO, weight_.data, dx_TI);
}

void ReplicatedLinear::BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO,
                                      const Tensor& x_TI) {
  AddLinearGradients(ctx.stream, dy_TO, x_TI, weight_, Tensor());
}

}  // namespace megatron
