// Multi-token prediction (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437): layers behind the model,
// each of which predicts the tokens that are a place further on than those before it.
//
//   h_0 = the model's normalized hidden states
//   h_d = norm(layer(W_d [norm(embedding of the token d places on) ; norm(h_d-1)]))
//
// The embedding has the factors that the model's has.
//
// The loss of depth d is that of the model's output matrix applied to h_d; the embedding is the
// model's too. What is read and predicted is in MicroBatch::mtp. Gradients of parameters are never
// deferred here, and LayerContext::activations and largest_scores_LN stay as they are.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, D depths.
#ifndef MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_
#define MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_layer.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/replicated_linear.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class MultiTokenPrediction {
 public:
  struct OfDepth {
    NormLayer::Saved embedding_norm, hidden_norm;
    Tensor joined_TI;  // both norms' outputs, one behind the other
    LayerStack::Saved layer;
    LmHead::Saved head;
  };
  struct Saved {
    std::vector<OfDepth> depths;
  };

  // `embedding` and `words`, the output matrix, outlive this. The model is pre-norm, and has no
  // learned positions and no grid of tensor-parallel ranks.
  MultiTokenPrediction(const ModelOptions& options, const ProcessGroup& tensor_group,
                       const ExpertGroups& expert_groups, VocabParallelEmbedding* embedding,
                       Parameter* words);

  // Adds the losses of depth d to row d + 1 of `sums` (LmHead::Forward). `hidden` is h_0, which must
  // live as long as *saved. `rotary` may be null.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& hidden_TH,
               const Tensor& sums, Saved* saved) const;
  // dhidden (=), parameter gradients (+=). It comes in front of the backward of the model's head.
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dhidden_TH,
                Saved* saved);

  // Appends all parameters but the embedding and the output matrix.
  void AppendParameters(std::vector<Parameter*>* out);
  std::vector<MoeLayer*> moe_layers() const;

 private:
  struct Depth {
    std::unique_ptr<NormLayer> embedding_norm, hidden_norm;
    std::unique_ptr<ReplicatedLinear> projection;
    std::unique_ptr<LayerStack> layer;
    std::unique_ptr<LmHead> head;
    int own_block = WeightBlocks::kNone;  // the block of the norms and the projection
  };

  // The context of a depth, whose batch is `batch`.
  static LayerContext ContextOf(const LayerContext& ctx, const MicroBatch& batch);
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
  std::vector<Depth> depths_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MULTI_TOKEN_PREDICTION_H_
