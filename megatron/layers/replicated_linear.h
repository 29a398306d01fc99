// A linear layer without a bias whose weight every tensor-parallel rank holds whole. It reads and
// writes this rank's rows of the residual stream, and communicates nothing but the largest
// magnitudes of products in FP8.
//
// Legend: T rows, I input features, O output features.
#ifndef MEGATRON_LAYERS_REPLICATED_LINEAR_H_
#define MEGATRON_LAYERS_REPLICATED_LINEAR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/layers/float8_options.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/linear_products.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

struct ReplicatedLinearOptions {
  std::string name;  // "decoder.layers.0.self_attention.linear_kv_down_proj"
  int64_t input_size = 0, output_size = 0;
  float init_std = 0.02f;
  // Whether ranks have rows of their own, so that gradients are summands.
  bool sequence_parallel = false;
  Float8Options float8;
};

class ReplicatedLinear {
 public:
  explicit ReplicatedLinear(const ReplicatedLinearOptions& options);

  // What `saved` gets lies in ctx.saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
               LinearProducts::Saved* saved) const;
  // What it leaves to BackwardWeight lies in ctx.kept().
  void BackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& dx_TI,
                     LinearProducts::Saved* saved) const;
  void BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& x_TI,
                      const LinearProducts::Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out) { out->push_back(&weight_); }

 private:
  LinearProducts products_;
  Parameter weight_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_REPLICATED_LINEAR_H_
