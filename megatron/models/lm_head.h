// The way out of a model: the last norm, the product with the vocabulary, and the loss; for BERT
// also what its head does before and beside that.
//
// The logits are the largest tensor of most models. So they may be formed *in chunks* of some
// tokens: then the product, the loss and the gradients of one chunk follow each other, and all of
// them happen in Backward, which spares forming the logits twice.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, V vocabulary of this
// rank.
#ifndef MEGATRON_MODELS_LM_HEAD_H_
#define MEGATRON_MODELS_LM_HEAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/vocab_parallel_cross_entropy.h"
#include "megatron/models/bert/masked_lm_transform.h"
#include "megatron/models/bert/sentence_order_head.h"
#include "megatron/models/measure.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class LmHead {
 public:
  struct Saved {
    NormLayer::Saved norm;
    Tensor normed_TH, transformed_TH;
    MaskedLmTransform::Saved transform;
    SentenceOrderHead::Saved order;
    VocabParallelCrossEntropy::Saved loss;
    Tensor sums;
  };

  // `words` is the output matrix, which the embedding may share, and outlives this.
  LmHead(const ModelOptions& options, const Measures& measures, const ProcessGroup& tensor_group,
         Parameter* words);

  // Adds to each measure's row of `sums` (fp32 [measures, 2]) the sum of weight * value and that of
  // weight; what is measured on logits that come in chunks is added by Backward, if there is one. x
  // must live as long as *saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums, Saved* saved) const;
  // dx (=), parameter gradients (+=). Only the output matrix' is put off: what BERT has beside it
  // is small.
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, const Saved& saved);
  // The logits of one token of x (fp32 [padded vocabulary]), on every tensor-parallel rank.
  void Predict(const LayerContext& ctx, const Tensor& x_TH, int64_t token,
               const Tensor& logits_V) const;

  // But for the output matrix.
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  Tensor Allocate(Arena* arena, int64_t rows, int64_t columns, const char* name) const {
    return arena->Allocate(dtype_, {rows, columns}, name);
  }
  // x normalized, unless it is already.
  Tensor Norm(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const;
  // What meets the vocabulary.
  Tensor Transform(const LayerContext& ctx, const Tensor& normed_TH, Saved* saved) const;
  // The embedding ends the gradient of a matrix that both use: that is not put off past its end.
  // Nor is one whose logits are gone.
  bool PutsOff(const LayerContext& ctx) const {
    return ctx.defers() && chunk_ == 0 && !(shares_with_embedding_ && ctx.blocks != nullptr);
  }
  // A measure's row of the sums; empty: the model does not measure it.
  Tensor RowOf(const Tensor& sums, MeasureKind kind) const;
  // Allocates them in scratch, for all tokens.
  VocabParallelCrossEntropy::Outputs AllocateOutputs(const LayerContext& ctx) const;
  // Adds what was found of all tokens to the sums.
  void Measure(const LayerContext& ctx, const VocabParallelCrossEntropy::Outputs& found,
               const Tensor& sums) const;
  // The loss of all tokens, a chunk at a time; unless dx is empty also the gradients, this rank's
  // summand of dx (=) among them.
  void RunChunks(const LayerContext& ctx, const Saved& saved, const Tensor& dx_TH) const;
  // Those of the bias, too.
  void AddWordsGradient(const LayerContext& ctx, const Saved& saved);
  // Null for a head that has nothing but the output matrix.
  WeightBlocks* OwnBlocks(const LayerContext& ctx) const {
    return own_block_ == WeightBlocks::kNone ? nullptr : ctx.blocks;
  }
  Tensor bias_V() const { return has_bias() ? bias_V_.data : Tensor(); }
  Tensor bias_gradient_V() const { return has_bias() ? bias_V_.grad : Tensor(); }
  bool has_bias() const { return !bias_V_.name.empty(); }

  DType dtype_;
  int64_t hidden_size_;
  Parameter* words_;
  Measures measures_;
  // The embedding of the same stage uses the matrix after the head in backward.
  bool shares_with_embedding_;
  float output_scale_;
  int64_t chunk_;                                 // ModelOptions::logits_chunk
  Parameter bias_V_;                              // without a name: there is none
  std::unique_ptr<NormLayer> norm_;               // null in a post-norm model
  std::unique_ptr<MaskedLmTransform> transform_;  // may be null
  std::unique_ptr<SentenceOrderHead> order_;      // may be null
  int own_block_ = WeightBlocks::kNone;           // of all parameters but the output matrix
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_LM_HEAD_H_
