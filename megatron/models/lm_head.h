// The way out of a model: the last norm, the product with the vocabulary, and the loss.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, V vocabulary of this
// rank.
#ifndef MEGATRON_MODELS_LM_HEAD_H_
#define MEGATRON_MODELS_LM_HEAD_H_

#include <cstdint>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/vocab_parallel_cross_entropy.h"
#include "megatron/models/gpt_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class LmHead {
 public:
  struct Saved {
    NormLayer::Saved norm;
    Tensor normed_TH;
    VocabParallelCrossEntropy::Saved loss;
  };

  // `words` is the output matrix, which the embedding may share, and outlives this.
  LmHead(const GptOptions& options, const ProcessGroup& tensor_group, Parameter* words);

  // Adds to `sums` (fp32 [2]) those of loss_weight * loss and of loss_weight.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums, Saved* saved) const;
  // dx (=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, const Saved& saved);
  // The logits of one token of x (fp32 [padded vocabulary]), on every tensor-parallel rank.
  void Predict(const LayerContext& ctx, const Tensor& x_TH, int64_t token,
               const Tensor& logits_V) const;

  // But for the output matrix.
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // The embedding ends the gradient of a matrix that both use: that is not put off past its end.
  bool PutsOff(const LayerContext& ctx) const {
    return ctx.defers() && !(shares_with_embedding_ && ctx.blocks != nullptr);
  }
  void AddWordsGradient(const LayerContext& ctx, const Saved& saved);
  Tensor Allocate(Arena* arena, int64_t rows, int64_t columns, const char* name) const {
    return arena->Allocate(dtype_, {rows, columns}, name);
  }

  DType dtype_;
  int64_t hidden_size_;
  Parameter* words_;
  // The embedding of the same stage uses the matrix after the head in backward.
  bool shares_with_embedding_;
  NormLayer norm_;
  int norm_block_ = 0;
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_LM_HEAD_H_
