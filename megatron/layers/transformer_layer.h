// One transformer layer, with dropout on each branch:
//
//   pre-norm    h = x + attention(norm(x)),  y = h + mlp(norm(h))
//   post-norm   h = norm(x + attention(x)),  y = norm(h + mlp(h))
//   sandwich    h = x + norm(attention(norm(x))),  y = h + norm(mlp(norm(h)))
//   reordered   h = x + norm(attention(x)),  y = h + norm(mlp(h))
//   parallel    y = x + attention(norm(x)) + mlp(norm(x))
//
// A sandwich layer is a pre-norm one with a norm behind each branch as well, and a reordered layer
// one of these without the norms in front. The norms of a parallel layer are two, or one that both
// branches read. A pre-norm layer may
// have a mixture of experts in place of the MLP, cross-attention, with a norm of its own, in front
// of it, and latent attention in place of self-attention. A hybrid layer is a pre-norm one with one
// branch, whichever it is: y = x + branch(norm(x)).
//
// Legend: T tokens of this rank, H hidden.
#ifndef MEGATRON_LAYERS_TRANSFORMER_LAYER_H_
#define MEGATRON_LAYERS_TRANSFORMER_LAYER_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/layers/cross_attention.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/layers/gated_delta_net.h"
#include "megatron/layers/latent_attention.h"
#include "megatron/layers/mamba_mixer.h"
#include "megatron/layers/mlp.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_layer.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/offload_modules.h"
#include "megatron/layers/self_attention.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

// The gradients of biases that come with those of the residual stream between two layers.
struct ResidualBiasGradients {
  Tensor below_H;               // OutputBiasGradient() of the layer whose output x is, or empty
  bool output_is_done = false;  // whether the layer above has added to this one's
};

class TransformerLayer {
 public:
  struct Saved {
    NormLayer::Saved attention_norm, cross_norm, mlp_norm;
    NormLayer::Saved post_attention_norm, post_mlp_norm;
    SelfAttention::Saved attention;
    // Used in place of attention.
    LatentAttention::Saved latent;
    MambaMixer::Saved mamba;
    GatedDeltaNet::Saved delta;
    CrossAttention::Saved cross;
    Mlp::Saved mlp;
    MoeLayer::Saved moe;  // used in place of mlp
  };

  // `layer` is the number in the model's stack of this name, from 0.
  TransformerLayer(const TransformerOptions& options, int64_t layer,
                   const ProcessGroup& tensor_group, const ExpertGroups& expert_groups);

  // x must live as long as *saved.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               const Tensor& y_TH, Saved* saved) const;
  // The sum that ends a layer, y = residual + dropout(branch + bias), before it is computed.
  // Without a branch there is none.
  struct LastSum {
    ops::Dropout dropout;
    Tensor branch_TH, bias_H, residual_TH;
  };
  // A pre-norm layer but for its last sum, which the caller has computed by AddLast or by the layer
  // above, in one pass with its norm: `below`, if there is one, is that of x, which is written
  // then. branch_TH is memory for the sum's branch; it may be that of `below`.
  LastSum ForwardBranches(const LayerContext& ctx, const RotaryTables* rotary, const LastSum& below,
                          const Tensor& x_TH, const Tensor& branch_TH, Saved* saved) const;
  static void AddLast(const LayerContext& ctx, const LastSum& sum, const Tensor& y_TH);
  bool post_norm() const { return post_norm_; }
  // What reads the layer's input first.
  OffloadModule input_module() const {
    return attention_norm_ && !post_norm_ ? OffloadModule::kAttentionNorm
                                          : OffloadModule::kQkvLinear;
  }
  // The number in the whole model, an encoder's layers before the decoder's.
  int64_t number() const { return dropout_layer_; }

  // The gradient of the bias that is added last, if it is the column sums of dy; else empty.
  Tensor OutputBiasGradient(const LayerContext& ctx) const {
    return post_norm_ ? Tensor() : WithSum(ctx, LastBiasGradient());
  }
  // Writes dx and adds to the parameters' gradients.
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                const Tensor& dx_TH, Saved* saved, const ResidualBiasGradients& biases = {});
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  void AppendParameters(std::vector<Parameter*>* out);
  MoeLayer* moe() { return moe_.get(); }  // null for a layer without experts

 private:
  bool has_mlp() const { return mlp_ || moe_; }
  // The input of self-attention, or of what is in its place.
  Tensor& AttentionInput(Saved* saved) const {
    if (mamba_) return saved->mamba.in.x_TI;
    if (delta_) return saved->delta.in.x_TI;
    return attention_ ? saved->attention.qkv.x_TI : saved->latent.x_TH;
  }
  void Attend(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
              const Tensor& y_TH, Saved* saved) const;
  void AttendBackward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                      const Tensor& dx_TH, Saved* saved);
  const RowParallelLinear& AttentionOutput() const {
    if (mamba_) return mamba_->output();
    if (delta_) return delta_->output();
    return attention_ ? attention_->output() : latent_->output();
  }
  // The input of the MLP, or of the experts in its place.
  Tensor& MlpInput(Saved* saved) const { return mlp_ ? saved->mlp.fc1.x_TI : saved->moe.x_TH; }
  // The bias of the layer's last branch, and its gradient.
  Tensor LastBias() const {
    if (!has_mlp()) return AttentionOutput().bias();
    return mlp_ ? mlp_->output().bias() : Tensor();
  }
  Tensor LastBiasGradient() const {
    if (!has_mlp()) return AttentionOutput().bias_gradient();
    return mlp_ ? mlp_->output().bias_gradient() : Tensor();
  }
  // Writes what the layer's first norm gives, if it has one. If there is a sum of the layer below,
  // it is x, which is written.
  void NormalizeInput(const LayerContext& ctx, const LastSum& below, const Tensor& x_TH,
                      const Tensor& normed_TH, Saved* saved) const;
  // Do for a hybrid layer what ForwardBranches and Backward do.
  LastSum ForwardOneBranch(const LayerContext& ctx, const RotaryTables* rotary,
                           const LastSum& below, const Tensor& x_TH, const Tensor& branch_TH,
                           Saved* saved) const;
  void BackwardOneBranch(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                         const Tensor& dx_TH, Saved* saved, const ResidualBiasGradients& biases);
  // Do for a parallel layer what ForwardBranches and Backward do.
  LastSum ForwardParallel(const LayerContext& ctx, const RotaryTables* rotary, const LastSum& below,
                          const Tensor& x_TH, const Tensor& branch_TH, Saved* saved) const;
  void BackwardParallel(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                        const Tensor& dx_TH, Saved* saved, const ResidualBiasGradients& biases);
  // The place of the last dropout.
  DropoutSite LastSite() const {
    return has_mlp() ? DropoutSite::kMlpOutput : DropoutSite::kAttentionOutput;
  }
  // The memory of a branch's output: branch_TH, or what the norm behind it reads.
  Tensor BranchOutput(const LayerContext& ctx, const Tensor& branch_TH) const;
  // Multiplies what a branch gives, in place.
  void Multiply(const LayerContext& ctx, const Tensor& branch_TH) const;
  // Returns the branch's gradient from that of the product: dy itself, or a tensor in ctx.kept().
  Tensor Multiplied(const LayerContext& ctx, const Tensor& dy_TH) const;
  // Returns the gradient in front of the norm behind a branch; dy where there is no such norm.
  Tensor NormedGradient(const LayerContext& ctx, NormLayer* norm, const NormLayer::Saved& saved,
                        const Tensor& dy_TH) const;
  void ForwardPostNorm(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                       const Tensor& y_TH, Saved* saved) const;
  void BackwardPostNorm(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                        const Tensor& dx_TH, Saved* saved);

  ops::Dropout Dropout(const LayerContext& ctx, DropoutSite site) const {
    return DropoutAt(ctx, hidden_dropout_, dropout_layer_, site);
  }

  // The gradient of a branch's bias comes with the gradient of the residual stream, whose column
  // sums it is, or, where dropout lies between them, with the gradient of the branch.
  Tensor WithSum(const LayerContext& ctx, const Tensor& dbias_H) const {
    return Drops(ctx) ? Tensor() : dbias_H;
  }
  Tensor WithBranch(const LayerContext& ctx, const Tensor& dbias_H) const {
    return Drops(ctx) ? dbias_H : Tensor();
  }
  bool Drops(const LayerContext& ctx) const {
    return Dropout(ctx, DropoutSite::kMlpOutput).probability > 0;
  }

  std::string name_;  // "decoder.layers.3"
  int64_t dropout_layer_;
  bool post_norm_;
  float residual_multiplier_;
  float hidden_dropout_;
  bool recompute_norm_;
  DType dtype_;
  bool is_hybrid_, is_parallel_;
  // The norms in front of the branch they are named after, or behind it. A reordered layer has
  // none, a hybrid layer the first alone, in front of its branch, and a parallel layer whose
  // branches share a norm the first alone, in front of both.
  std::unique_ptr<NormLayer> attention_norm_, mlp_norm_;
  std::unique_ptr<NormLayer> post_attention_norm_,
      post_mlp_norm_;  // null but in a sandwich layer and a reordered one
  // Exactly one of these is set, but in a hybrid layer with an MLP or experts.
  std::unique_ptr<SelfAttention> attention_;
  std::unique_ptr<LatentAttention> latent_;
  std::unique_ptr<MambaMixer> mamba_;
  std::unique_ptr<GatedDeltaNet> delta_;
  // Both are null in a layer without cross-attention.
  std::unique_ptr<NormLayer> cross_norm_;
  std::unique_ptr<CrossAttention> cross_;
  // Exactly one of these two is set, but in a hybrid layer without them.
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<MoeLayer> moe_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TRANSFORMER_LAYER_H_
