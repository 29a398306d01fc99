// Consecutive transformer layers, with the recomputation of whole layers. In every model a chunk of
// a pipeline stage consists of them, of embeddings and of heads.
//
// Layers are grouped in *segments*. A recomputed segment keeps its input alone; its backward runs
// its forward again, in the arena ctx.recompute, or, where weight gradients are deferred, in
// ctx.deferred.
//
// What the first layers keep may be *offloaded*, or some parts of it: it lies in windows of an
// ActivationStore in place of ctx.saved, and in host memory between forward and backward. Such a
// segment's input is its own, but for that of the first one, which stays where the caller or the
// frozen layers have it. What layers keep in the host arena of ctx.saved lies there all the time.
//
// Where nothing in front of the stack is trained, its first layers may be *frozen*: layers all of
// whose parameters keep their values, up to the first one that has others. They are run forward
// alone and keep nothing. Behind them begins the first segment.
//
// Where ctx.kept_tokens is set, all layers of the model but the first and the last see so many
// tokens of each sample (token_dropping.h). Forward and Backward of a pass have it alike.
//
// Legend: T rows of the residual stream on this rank, H hidden.
#ifndef MEGATRON_MODELS_LAYER_STACK_H_
#define MEGATRON_MODELS_LAYER_STACK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/offload_modules.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/token_dropping.h"
#include "megatron/layers/transformer_layer.h"
#include "megatron/models/activation_store.h"
#include "megatron/models/layer_recompute.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

struct LayerStackOptions {
  TransformerOptions transformer;
  LayerRecompute recompute;
  int64_t first_layer = 0;  // number in the whole model
  int64_t num_layers = 0;   // 0: the input is the output
  // The number of first layers that are offloaded where a store is given; of layers that are
  // recomputed together, the first one counts. Their weight gradients are not deferred then.
  int64_t num_offloaded_layers = 0;
  OffloadModules offload_modules;  // the parts of what they keep that are; empty: all
};

class LayerStack {
 public:
  struct Saved {
    // Where set, before Forward and until the end of Backward, the place of what is offloaded.
    ActivationStore::Slot* offload = nullptr;
    // Whether anything in front of the stack is trained; as long as `offload`.
    bool trains_in_front = true;
    std::vector<Tensor> layer_input;
    std::vector<TransformerLayer::Saved> layers;
    std::vector<KeptTokens> kept;  // those of layers that drop tokens
  };

  LayerStack(const LayerStackOptions& options, const ProcessGroup& tensor_group,
             const ExpertGroups& expert_groups = {});

  // x must live as long as *saved. `rotary` may be null.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               const Tensor& y_TH, Saved* saved) const;
  // The same without keeping anything; x may not be y. Where `offload` is set, layers that are
  // offloaded in training work in its windows.
  void ForwardOnly(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                   const Tensor& y_TH, ActivationStore::Slot* offload = nullptr) const;
  // dx (=), parameter gradients (+=). dx may not be dy. Where nothing in front of the stack is
  // trained, dx is memory to work in.
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // Each layer is a block. Without this call before, ctx.blocks must be null.
  void AppendParameters(std::vector<Parameter*>* out);
  // The block that forward uses first; kNone if there are no layers.
  int first_block() const { return layers_.empty() ? WeightBlocks::kNone : first_block_; }
  // The layers that have experts, in order.
  std::vector<MoeLayer*> moe_layers() const;
  // Returns whether any of the parameters, which were appended before, is not frozen.
  bool IsTrained() const { return NumFrozen() < num_layers(); }

 private:
  struct Segment {
    int64_t begin = 0, end = 0;
    bool recompute = false;
    bool offloaded = false;
    int next = WeightBlocks::kNone;  // the block behind it
  };

  // Gives a layer's context the window for what is offloaded, with the host arena of ctx->saved.
  void SetWindow(Arena* window, LayerContext* ctx) const;
  // Returns whether an offloaded segment's input lies in its window.
  bool OffloadsInput(const Segment& segment) const;
  int BlockOf(int64_t layer) const { return first_block_ + static_cast<int>(layer); }
  // Returns the number of first layers without a parameter to train.
  int64_t NumFrozen() const;
  // Returns the number of those that keep nothing.
  int64_t NumFrozen(const Saved& saved) const { return saved.trains_in_front ? 0 : NumFrozen(); }
  // Returns the part of a segment that is not frozen.
  static Segment Behind(int64_t frozen, Segment segment);
  Tensor AllocateHidden(Arena* arena, const Tensor& like_TH, const char* name) const {
    return arena->Allocate(like_TH.dtype(), like_TH.shape(), name);
  }
  // Returns whether layer i of the stack drops tokens in this pass, and whether any of them does.
  bool DropsTokens(const LayerContext& ctx, int64_t i) const;
  bool DropsTokens(const LayerContext& ctx) const;
  // Calls the layer, for its kept tokens if it drops any; else `kept` is not used.
  void ForwardLayer(const LayerContext& ctx, const RotaryTables* rotary, int64_t i,
                    const Tensor& x_TH, const Tensor& y_TH, TransformerLayer::Saved* saved,
                    KeptTokens* kept) const;
  // Runs the first `count` layers without keeping anything.
  void ForwardFirst(const LayerContext& ctx, const RotaryTables* rotary, int64_t count,
                    const Tensor& x_TH, const Tensor& y_TH, ActivationStore::Slot* offload) const;
  void BackwardLayer(const LayerContext& ctx, const RotaryTables* rotary, int64_t i,
                     const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  // The gradient of the last bias of the layer below, if it comes with the gradient of layer i's
  // input; else empty.
  Tensor BiasGradientBelow(const LayerContext& ctx, int64_t i) const;
  // Returns memory for the branches of layers whose last sum is computed by the layer above; empty
  // where layers compute their own.
  Tensor AllocateBranch(const LayerContext& ctx, const Tensor& like_TH) const;
  // Reads saved->layer_input[begin], or writes it if *sum is the last sum of the layer below. *sum
  // becomes that of the segment's last layer, or none, and y is written, if `ends`.
  void ForwardSegment(const LayerContext& ctx, const RotaryTables* rotary, const Segment& segment,
                      bool ends, const Tensor& branch_TH, const Tensor& y_TH,
                      TransformerLayer::LastSum* sum, Saved* saved) const;
  // `ends`: nothing in front of the segment goes backward.
  void BackwardSegment(const LayerContext& ctx, const RotaryTables* rotary, const Segment& segment,
                       bool ends, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);

  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::vector<std::vector<const Parameter*>> parameters_;  // those of each layer
  int64_t first_layer_, layers_of_model_;
  std::vector<Segment> segments_;
  OffloadModules offload_modules_;
  int first_block_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_LAYER_STACK_H_
