// The word table, whose rows are cut over the tensor-parallel ranks; also the output projection
// where the two are tied.
//
// On a grid of ranks (tensor_grid.h) the ranks over which words are cut, a column or a cube's
// columns of all levels, have the same columns of the table. Each looks up the tokens of all of
// them, and they add up what they find and take the rows of their own tokens.
//
// Legend: T tokens, V rows of this rank, H hidden.
#ifndef MEGATRON_LAYERS_VOCAB_PARALLEL_EMBEDDING_H_
#define MEGATRON_LAYERS_VOCAB_PARALLEL_EMBEDDING_H_

#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const std::string& name, int64_t padded_vocab_size, int64_t hidden_size,
                         float init_std, const ProcessGroup& tensor_group,
                         const TensorGrid& grid = {});

  // `tokens` are all tokens of the micro-batch; y and dy are this rank's rows.
  void Forward(const LayerContext& ctx, const Tensor& tokens_T, const Tensor& y_TH) const;
  void Backward(const LayerContext& ctx, const Tensor& tokens_T, const Tensor& dy_TH);

  int64_t first_row() const { return weight_.sharding.offset[0]; }
  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }

 private:
  // The tokens that this rank looks up: those given, or of all these ranks in ctx.scratch.
  Tensor TokensToLookUp(const LayerContext& ctx, const Tensor& tokens_T) const;

  Parameter weight_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_VOCAB_PARALLEL_EMBEDDING_H_
