// A number for each token that the shared expert's output is multiplied by: the sigmoid of a
// product of the expert's input with a trained vector, in fp32 whatever the model's dtype is.
//
// Legend: T rows of the residual stream that this rank holds, H hidden.
#ifndef MEGATRON_LAYERS_MOE_SHARED_EXPERT_GATE_H_
#define MEGATRON_LAYERS_MOE_SHARED_EXPERT_GATE_H_

#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class SharedExpertGate {
 public:
  struct Saved {
    Tensor shared_TH, logits_T1;
  };

  // `name` is "decoder.layers.0.mlp.shared_experts".
  SharedExpertGate(const TransformerOptions& options, const std::string& name,
                   const ProcessGroup& tensor_group);

  // Adds to y the expert's output times the gate of x. `shared` must live as long as *saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& shared_TH,
               const Tensor& y_TH, Saved* saved) const;
  // Writes the gradient of the expert's output, and returns that of the logits, which is in scratch
  // memory.
  Tensor BackwardOutput(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dshared_TH,
                        const Saved& saved) const;
  // Adds to dx, and to the vector's gradient.
  void BackwardInput(const LayerContext& ctx, const Tensor& dlogits_T1, const Tensor& x_TH,
                     const Tensor& dx_TH);

  void AppendParameters(std::vector<Parameter*>* out) { out->push_back(&weight_1H_); }

 private:
  // Returns x in fp32: x itself, or a copy in scratch memory.
  static Tensor InFloat(const LayerContext& ctx, const Tensor& x);

  Parameter weight_1H_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_SHARED_EXPERT_GATE_H_
