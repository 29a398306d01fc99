#include "megatron/layers/replicated_linear.h"

namespace megatron {

ReplicatedLinear::ReplicatedLinear(const ReplicatedLinearOptions& options)
    : products_(options.float8, LinearProducts::Cut::kRows, options.name + ".weight") {
  weight_.name = options.name + ".weight";
  weight_.sharding = Replicated({options.output_size, options.input_size},
                                options.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{});
  weight_.initializer = Initializer::Normal(options.init_std);
  weight_.matrix = MatrixDims();
}

void ReplicatedLinear::Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
                               LinearProducts::Saved* saved) const {
  products_.Forward(ctx, x_TI, weight_.data, Tensor(), y_TO, saved);
}

void ReplicatedLinear::BackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                     const Tensor& dx_TI, LinearProducts::Saved* saved) const {
  products_.Reserve(ctx, dy_TO, saved);
  products_.BackwardInput(ctx, dy_TO, weight_.data, dx_TI, saved);
}

void ReplicatedLinear::BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO,
                                      const Tensor& x_TI, const LinearProducts::Saved& saved) {
  if (weight_.frozen) return;
  products_.BackwardWeight(ctx, dy_TO, x_TI, weight_.grad, Tensor(), saved);
}

}  // namespace megatron
