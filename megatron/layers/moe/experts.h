// The experts of one layer that this rank holds: as many MLPs, each on rows of its own.
//
// Weights are one tensor for all experts, [E, I, H] (gated [E, 2, I, H]: gates, then ups) and
// [E, H, I], and so are their biases, if they have some; this rank holds its experts' part, of
// which every rank of an expert's tensor group has other features. The bias of [E, H] is added by
// the first of them alone.
//
// Forward and Backward take the rows of some of the experts at a time, so that others may still be
// on their way: BeginForward, then Forward for each part in turn; BeginBackward, then Backward for
// each. No part changes a bit of another. Tensors hold the rows of all parts.
//
// Legend: R rows in groups by expert, H hidden, I ffn of this rank.
#ifndef MEGATRON_LAYERS_MOE_EXPERTS_H_
#define MEGATRON_LAYERS_MOE_EXPERTS_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/layers/moe/grouped_products.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class Experts {
 public:
  struct Saved {
    // None where forward keeps codes of them, or is to compute them again.
    Tensor in_RH, activated_RI, pre_RI;
    Tensor dout_RH, dpre_RI;
    GroupedProducts::Saved fc1, fc2;
  };

  // `name` is "decoder.layers.0.mlp.experts.experts".
  Experts(const TransformerOptions& options, const std::string& name, const ExpertGroups& groups);

  // Returns whether `in` need not outlive Forward.
  bool keeps_codes(const LayerContext& ctx) const { return fc1_products_.keeps_codes(ctx); }

  // Takes memory for what forward keeps. It reads nothing of `in`.
  void BeginForward(const LayerContext& ctx, const Tensor& in_RH, Saved* saved) const;
  // Where several ranks share an expert, out is a summand.
  void Forward(const LayerContext& ctx, const ExpertPart& part, const Tensor& in_RH,
               const Tensor& out_RH, Saved* saved) const;
  // Takes memory, and computes again what forward has not kept. It reads nothing of dout, which
  // must lie in ctx.kept(). The weights' gradients are left to BackwardWeight also where ctx does
  // not defer them: what it reads lies in ctx.kept(), and the caller's scope must hold it.
  void BeginBackward(const LayerContext& ctx, absl::Span<const ExpertPart> parts,
                     const Tensor& dout_RH, Saved* saved) const;
  // Writes the part's rows of din.
  void Backward(const LayerContext& ctx, const ExpertPart& part, const Tensor& din_RH,
                Saved* saved);
  // `groups` are those of all parts, counted from the first row of all.
  void BackwardWeight(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                      const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  Tensor Fc1(const Tensor& x) const;  // the weight or its gradient as [experts, features, H]
  // The bias, or its gradient, of one expert; empty if there is none.
  Tensor BiasOf(const Parameter& bias, const Tensor& of_all, int64_t expert) const;
  void AddBias(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
               const Parameter& bias, const Tensor& y_RO) const;
  void AddBiasGradient(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                       const Tensor& dy_RO, const Parameter& bias) const;
  Tensor AllocatePre(Arena* arena, int64_t rows) const;
  Tensor AllocateActivated(Arena* arena, int64_t rows, const char* name) const;
  // Computes the part's rows of pre and activated, which hold those alone.
  void Activate(const LayerContext& ctx, const ExpertPart& part, const Tensor& in_RH,
                const Tensor& pre_RI, const Tensor& activated_RI, Saved* saved) const;

  bool gated_, recompute_;
  bool has_bias_;
  bool is_first_;  // whether this is the first of the ranks that share an expert
  ops::Activation activation_;
  ops::Gate gate_;
  DType dtype_;
  GroupedProducts fc1_products_, fc2_products_;
  Parameter fc1_, fc2_;
  Parameter fc1_bias_, fc2_bias_;  // without has_bias_ they have no name
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_EXPERTS_H_
