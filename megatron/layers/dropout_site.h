// The places in a model where dropout is applied, and the dropout of each.
#ifndef MEGATRON_LAYERS_DROPOUT_SITE_H_
#define MEGATRON_LAYERS_DROPOUT_SITE_H_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/layers/layer_context.h"
#include "megatron/ops/dropout.h"

namespace megatron {

// The places in the model where dropout is applied. The values are part of what a seed means, so
// they must never be renumbered.
enum class DropoutSite : uint32_t {
  kEmbedding = 0,
  kAttentionProbabilities = 1,
  kAttentionOutput = 2,
  kMlpOutput = 3,
  kCrossAttentionProbabilities = 4,
  kCrossAttentionOutput = 5,
  kDecoderEmbedding = 6,  // in a model whose kEmbedding is its encoder's
  kRouterInput = 7,       // jitter
  kMtpEmbedding = 8,      // the layer is a depth of multi-token prediction
  kSequenceHead = 9,      // rows are the first tokens of sequences
  kAdapterInput = 10      // in place of the layer, a number of the adapter
};

// The dropout of one site of one layer (numbered over the whole model, from 0) for this
// micro-batch.
inline ops::Dropout DropoutAt(const LayerContext& ctx, float probability, int64_t layer,
                              DropoutSite site) {
  ops::Dropout dropout;
  if (!ctx.training || probability == 0) return dropout;
  dropout.probability = probability;
  dropout.key = DeriveKey(ctx.seed, kPhiloxDropout, static_cast<uint64_t>(layer),
                          static_cast<uint32_t>(site));
  const bool all_tokens = site == DropoutSite::kAttentionProbabilities ||
                          site == DropoutSite::kCrossAttentionProbabilities;
  const MicroBatch& batch = all_tokens ? ctx.inner_batch() : *ctx.batch;
  dropout.sample_T = all_tokens ? batch.sample_T : ctx.MyRows(batch.sample_T);
  dropout.position_T = all_tokens ? batch.sample_position_T : ctx.MyRows(batch.sample_position_T);
  if (!all_tokens) dropout.first_column = ctx.first_column;
  return dropout;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_DROPOUT_SITE_H_
