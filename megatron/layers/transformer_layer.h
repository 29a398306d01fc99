// One pre-norm transformer layer: x + attention(norm(x)), then that + mlp(norm(that)), with dropout
// on both branches.
//
// Legend: T tokens of this rank, H hidden.
#ifndef MEGATRON_LAYERS_TRANSFORMER_LAYER_H_
#define MEGATRON_LAYERS_TRANSFORMER_LAYER_H_

#include <string>
#include <vector>

#include "megatron/layers/mlp.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/self_attention.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class TransformerLayer {
 public:
  struct Saved {
    NormLayer::Saved input_norm, mlp_norm;
    SelfAttention::Saved attention;
    Mlp::Saved mlp;
  };

  // `layer` is the number in the whole model, from 0.
  TransformerLayer(const TransformerOptions& options, int64_t layer,
                   const ProcessGroup& tensor_group);

  // x must live as long as *saved.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               const Tensor& y_TH, Saved* saved) const;
  // dx (=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  int64_t layer_;
  float hidden_dropout_;
  bool recompute_norm_;
  DType dtype_;
  NormLayer input_norm_, mlp_norm_;
  SelfAttention attention_;
  Mlp mlp_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TRANSFORMER_LAYER_H_
