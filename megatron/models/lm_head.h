// The end of a model: the last norm, the product with the vocabulary, and the loss; for BERT also
// its transform in front of the product and its binary head. What heads of models with multi-token
// prediction read is normalized already (multi_token_prediction.h), as in a post-norm model.
//
// The logits are the largest tensor of most models, so they may be formed *in chunks* of some
// tokens. Then the product, the loss and the gradients of one chunk follow each other, all of them
// in Backward, so that the logits are not formed twice.
//
// On a square of ranks (layers/tensor_grid.h) an output matrix that the embedding shares has the
// words of this rank's row, and the product needs those of its column. Two ranks that are each
// other's mirror image in the diagonal swap their blocks, and the blocks' gradients. In a cube the
// product is that of a column layer, and the loss is of the inner layout's samples.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, V vocabulary of this
// rank.
#ifndef MEGATRON_MODELS_LM_HEAD_H_
#define MEGATRON_MODELS_LM_HEAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/vocab_parallel_cross_entropy.h"
#include "megatron/models/bert/masked_lm_transform.h"
#include "megatron/models/bert/sequence_head.h"
#include "megatron/models/measure.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class LmHead {
 public:
  using TokenScores = VocabParallelCrossEntropy::Outputs;

  struct Saved {
    NormLayer::Saved norm;
    Tensor normed_TH, transformed_TH;
    MaskedLmTransform::Saved transform;
    SequenceHead::Saved order;
    VocabParallelCrossEntropy::Saved loss;
    Tensor sums;
    TokenScores scores;
  };

  // `words` is the output matrix, which the embedding may share, and outlives this. `used_later`:
  // in backward another head of the stage, or multi-token prediction, uses it after this one.
  LmHead(const ModelOptions& options, const Measures& measures, const ProcessGroup& tensor_group,
         Parameter* words, bool used_later = false);

  // Adds to each measure's row of `sums` (fp32 [measures, 2]) the sum of weight * value and that of
  // weight; what is measured on logits that come in chunks is added by Backward, if there is one. x
  // must live as long as *saved. Where `scores` has tensors, they get the loss and the hit of each
  // token; where logits come in chunks, in Backward, if there is one.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums, Saved* saved,
               const TokenScores& scores = TokenScores()) const;
  // dx (=), parameter gradients (+=). Only the gradient of the output matrix is deferred: BERT's
  // other parameters here are small.
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, const Saved& saved);
  // The logits (fp32 [P, padded vocabulary]) of P tokens of x, whose numbers are int32, on every
  // tensor-parallel rank.
  void Predict(const LayerContext& ctx, const Tensor& x_TH, const Tensor& token_P,
               const Tensor& logits_PV) const;

  // Appends all parameters but the output matrix.
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  Tensor Allocate(Arena* arena, int64_t rows, int64_t columns, const char* name) const {
    return arena->Allocate(dtype_, {rows, columns}, name);
  }
  // Returns x normalized, or x where it is that already.
  Tensor Norm(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const;
  // Returns the hidden states that are multiplied with the output matrix.
  Tensor Transform(const LayerContext& ctx, const Tensor& normed_TH, Saved* saved) const;
  // Returns whether the gradient of the output matrix is deferred. The gradient of a matrix that
  // the embedding uses, too, is complete when the embedding has added to it, which is not deferred;
  // and nothing can be deferred once the logits are gone.
  bool PutsOff(const LayerContext& ctx) const {
    return ctx.defers() && chunk_ == 0 && !(is_used_later_ && ctx.blocks != nullptr);
  }
  // The products of ops/linear.h with the output matrix, on one rank or over a grid's.
  void Multiply(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TV) const;
  // The product with the rows of x of all ranks. With tp_comm_overlap other ranks' rows are on
  // their way meanwhile.
  void MultiplyAll(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TV) const;
  // Starts to write dx, which is there once the result has been waited for.
  [[nodiscard]] AsyncCall MultiplyBack(const LayerContext& ctx, const Tensor& dy_TV,
                                       const Tensor& dx_TH) const;
  // Returns the output matrix with this column's words, itself or in ctx.scratch.
  Tensor OutputMatrix(const LayerContext& ctx) const;
  bool swaps_blocks(const LayerContext& ctx) const {
    return ctx.is_grid() && !ctx.grid.is_cube && tied_;
  }
  // A measure's row of the sums; empty: the model does not measure it.
  Tensor RowOf(const Tensor& sums, MeasureKind kind) const;
  // Returns `scores` and, of what the measures need besides, tensors in scratch, for all tokens.
  TokenScores OutputsOr(const TokenScores& scores, const LayerContext& ctx) const;
  // Adds the losses and hits of all tokens to the sums.
  void Measure(const LayerContext& ctx, const TokenScores& found, const Tensor& sums) const;
  // Computes the loss of all tokens, a chunk at a time; unless dx is empty also the gradients, with
  // this rank's summand of dx (=).
  void RunChunks(const LayerContext& ctx, const Saved& saved, const Tensor& dx_TH,
                 const TokenScores& scores) const;
  // Adds the gradients of the output matrix and of the bias. all_TH has the rows of all ranks, or
  // is empty: they are gathered here.
  void AddWordsGradient(const LayerContext& ctx, const Saved& saved, const Tensor& all_TH);
  bool AddsToWords() const { return !words_->frozen || !bias_gradient_V().empty(); }
  // Returns null for a head that has nothing but the output matrix.
  WeightBlocks* OwnBlocks(const LayerContext& ctx) const {
    return own_block_ == WeightBlocks::kNone ? nullptr : ctx.blocks;
  }
  Tensor bias_V() const { return has_bias() ? bias_V_.data : Tensor(); }
  Tensor bias_gradient_V() const { return has_bias() ? bias_V_.grad : Tensor(); }
  bool has_bias() const { return !bias_V_.name.empty(); }

  DType dtype_;
  int64_t hidden_size_;
  int64_t vocab_part_;  // the words of this rank's logits
  Parameter* words_;
  Measures measures_;
  bool tied_;
  // In backward an embedding of the same stage, or another head, uses the matrix after the head.
  bool is_used_later_;
  float output_scale_;
  int64_t chunk_;                                 // ModelOptions::logits_chunk
  bool overlaps_;                                 // TransformerOptions::tp_comm_overlap
  Parameter bias_V_;                              // has no name if there is no bias
  std::unique_ptr<NormLayer> norm_;               // null where x is normalized
  std::unique_ptr<MaskedLmTransform> transform_;  // may be null
  std::unique_ptr<SequenceHead> order_;           // may be null
  int own_block_ = WeightBlocks::kNone;           // block of all parameters but the output matrix
  float softcap_;                                 // ModelOptions::logit_softcap
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_LM_HEAD_H_
