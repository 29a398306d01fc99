// The table of relative positions of a stack, shared by all its layers.
//
// Legend: W = 2 * max_distance + 1 distances, N heads of this rank.
#ifndef MEGATRON_LAYERS_RELATIVE_POSITIONS_H_
#define MEGATRON_LAYERS_RELATIVE_POSITIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// The row of the table for keys that are `distance` places behind their query (before it: < 0).
// Half of a small number of distances have a row of their own, up to max_distance the others share
// rows by their logarithm, computed in fp32. A causal stack sees no key behind its query; others
// have half of the rows for each side.
int64_t RelativeBucket(const RelativePositionOptions& options, bool causal, int64_t distance);

class RelativePositions {
 public:
  // `name` is "encoder_relative_pos_emb.relative_attention_bias". `device` and `ledger` are those
  // of the list of rows.
  RelativePositions(const TransformerOptions& options, const std::string& name,
                    const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger);

  Shape bias_shape() const;
  // Writes bias (fp32 [W, N]), the row of each distance.
  void Forward(const LayerContext& ctx, const Tensor& bias_WN) const;
  // Adds to the table's gradient, and ends the block's use in the micro-batch.
  void Backward(const LayerContext& ctx, const Tensor& dbias_WN);

  void AppendParameters(std::vector<Parameter*>* out) { AppendBlock({&table_}, out); }
  bool IsTrained() const { return !table_.frozen; }

 private:
  Parameter table_;  // [buckets, heads], cut by heads
  DType dtype_;
  Buffer buffer_;
  Tensor bucket_W_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_RELATIVE_POSITIONS_H_
