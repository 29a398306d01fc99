// The beginning of a model: each token becomes the sum of its word's row, its position's and, where
// the model has them, its type's; or its word's row times a number; normalized in a post-norm
// model; times a number; with dropout.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden.
#ifndef MEGATRON_MODELS_TOKEN_EMBEDDING_H_
#define MEGATRON_MODELS_TOKEN_EMBEDDING_H_

#include <memory>
#include <vector>

#include "megatron/layers/dropout_site.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class TokenEmbedding {
 public:
  struct Saved {
    NormLayer::Saved norm;
  };

  // `words` is the word table, which the head may share, and outlives this.
  TokenEmbedding(const ModelOptions& options, VocabParallelEmbedding* words);

  // y (=). Models that embed the tokens of a batch and those of its encoder give each a site.
  void Forward(const LayerContext& ctx, const Tensor& y_TH, Saved* saved,
               DropoutSite site = DropoutSite::kEmbedding) const;
  // Accumulates the parameters' gradients (+=). dy is overwritten. `last`: the parameters are not
  // used again in the micro-batch.
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Saved& saved,
                DropoutSite site = DropoutSite::kEmbedding, bool last = true);

  void AppendParameters(std::vector<Parameter*>* out);
  // Returns whether any of the parameters, which were appended before, is not frozen.
  bool IsTrained() const;

 private:
  // A table that every tensor-parallel rank holds whole.
  Parameter MakeTable(const ModelOptions& options, const char* name, int64_t rows) const;
  // Adds the rows of a table, if the model has it.
  void LookUp(const LayerContext& ctx, const Parameter& table, const Tensor& ids_T,
              const Tensor& y_TH) const;
  void LookUpBackward(const LayerContext& ctx, const Tensor& ids_T, const Tensor& dy_TH,
                      Parameter* table) const;
  // Returns null for an embedding that has nothing but the word table.
  WeightBlocks* RestBlocks(const LayerContext& ctx) const {
    return rest_block_ == WeightBlocks::kNone ? nullptr : ctx.blocks;
  }
  float dropout_, scale_, output_scale_;
  VocabParallelEmbedding* words_;
  Parameter positions_, types_;           // have no name if there is no such table
  std::unique_ptr<NormLayer> norm_;       // may be null
  int rest_block_ = WeightBlocks::kNone;  // block of all parameters but the word table
  std::vector<const Parameter*> parameters_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TOKEN_EMBEDDING_H_
