// Multi-token prediction (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437): layers behind the model,
// each of which predicts the tokens that are a place further on than those before it.
//
//   h_0 = norm(output of the model's last layer)
//   h_d = norm(layer(W_d [norm(embedding of the token d places on) ; norm(h_d-1)]))
//
// The embedding has the factors that the model's has.
//
// The loss of the model is that of the output matrix applied to h_0, and the loss of depth d that
// of the same matrix applied to h_d. Heads for them are elsewhere, perhaps on another stage; the
// embedding is the model's too. What is read and predicted is in MicroBatch::mtp. Gradients of
// parameters are never deferred here, and LayerContext::activations and largest_scores_LN stay as
// they are.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, D depths.
#ifndef MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_
#define MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/linear_products.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_layer.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/replicated_linear.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class MultiTokenPrediction {
 public:
  struct OfDepth {
    NormLayer::Saved embedding_norm, hidden_norm, last_norm;
    Tensor joined_TI;  // the outputs of the first two norms, one behind the other
    LinearProducts::Saved projection;
    LayerStack::Saved layer;
  };
  struct Saved {
    NormLayer::Saved norm;
    std::vector<OfDepth> depths;
  };

  // `embedding` outlives this. The model is pre-norm, and has no learned positions, no hybrid
  // layers and no grid of tensor-parallel ranks.
  MultiTokenPrediction(const ModelOptions& options, const ProcessGroup& tensor_group,
                       const ExpertGroups& expert_groups, VocabParallelEmbedding* embedding);

  // Returns the context in which a depth's layer and head work, whose batch is
  // ctx.batch->AtDepth(depth).
  static LayerContext ContextOfDepth(const LayerContext& ctx, const MicroBatch& batch);

  // hidden[d] = h_d; `hidden` has D + 1 tensors, or one where no further tokens are predicted. x,
  // and of `hidden` all but the last must live as long as *saved. `rotary` may be null.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               absl::Span<const Tensor> hidden, Saved* saved) const;
  // dx (=), parameter gradients (+=). dhidden[d] is the gradient of h_d by its head. The heads of
  // the same stage have gone back before.
  void Backward(const LayerContext& ctx, const RotaryTables* rotary,
                absl::Span<const Tensor> dhidden, const Tensor& dx_TH, Saved* saved);

  // Appends all parameters but the embedding.
  void AppendParameters(std::vector<Parameter*>* out);
  std::vector<MoeLayer*> moe_layers() const;

 private:
  // A norm that is a block by itself.
  struct NormBlock {
    std::unique_ptr<NormLayer> norm;
    int block = WeightBlocks::kNone;
  };
  struct Depth {
    std::unique_ptr<NormLayer> embedding_norm, hidden_norm;
    std::unique_ptr<ReplicatedLinear> projection;
    std::unique_ptr<LayerStack> layer;
    NormBlock last_norm;
    int own_block = WeightBlocks::kNone;  // the block of the first two norms and the projection
  };

  void Normalize(const LayerContext& ctx, const NormBlock& norm, const Tensor& x_TH,
                 const Tensor& y_TH, NormLayer::Saved* saved) const;
  void NormalizeBack(const LayerContext& ctx, const NormBlock& norm, const Tensor& dy_TH,
                     const Tensor& dx_TH, const NormLayer::Saved& saved) const;
  static void AppendNorm(NormBlock* norm, std::vector<Parameter*>* out);
  Tensor Allocate(Arena* arena, const LayerContext& ctx, const char* name) const {
    return arena->Allocate(dtype_, {ctx.rows(), hidden_size_}, name);
  }
  Tensor EmbeddingPart(const Tensor& joined_TI) const {
    return joined_TI.Slice(1, 0, hidden_size_);
  }
  Tensor HiddenPart(const Tensor& joined_TI) const {
    return joined_TI.Slice(1, hidden_size_, 2 * hidden_size_);
  }

  DType dtype_;
  int64_t hidden_size_;
  float dropout_, embedding_scale_;
  VocabParallelEmbedding* embedding_;
  // Whether nothing uses the embedding's gradient after this in the backward of the stage.
  bool ends_embedding_;
  NormBlock norm_;  // the model's last
  std::vector<Depth> depths_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_
