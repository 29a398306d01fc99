// The way into a model: of each token the sum of its word's row, its position's and, where the
// model has them, its type's, with dropout.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden.
#ifndef MEGATRON_MODELS_TOKEN_EMBEDDING_H_
#define MEGATRON_MODELS_TOKEN_EMBEDDING_H_

#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/gpt_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class TokenEmbedding {
 public:
  // `words` is the word table, which the head may share, and outlives this.
  TokenEmbedding(const GptOptions& options, VocabParallelEmbedding* words);

  // y (=).
  void Forward(const LayerContext& ctx, const Tensor& y_TH) const;
  // Accumulates the tables' gradients (+=). dy is overwritten.
  void Backward(const LayerContext& ctx, const Tensor& dy_TH);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // A table that every tensor-parallel rank holds whole.
  Parameter MakeTable(const GptOptions& options, const char* name, int64_t rows) const;
  ops::Dropout DropoutOf(const LayerContext& ctx) const {
    return DropoutAt(ctx, dropout_, 0, DropoutSite::kEmbedding);
  }

  float dropout_;
  VocabParallelEmbedding* words_;
  Parameter positions_;  // without a name: there is none
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TOKEN_EMBEDDING_H_
