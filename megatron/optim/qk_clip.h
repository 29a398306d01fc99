// QK-clip: keeps the scores of attention below a threshold, by smaller queries and keys.
//
//   qk_clip.StartStep(stream);
//   ...                                // forward passes raise qk_clip.largest_scores_LN()
//   optimizer.Step(...);
//   const float largest = qk_clip.Clip(groups.world, stream);
//   parallel.ShareWeights();
//
// Where the largest score S of a group of heads in a step exceeds the threshold t, the weights and
// biases that make its queries are scaled by (t / S)^alpha, and those that make its key by
// (t / S)^(1 - alpha). So all scores of these weights are t / S as large; values do not change. The
// group is the unit because its heads have one key. Masters and weights are scaled after the
// update, and an optimizer's states are not. This is the clipping of MuonClip (Kimi K2,
// arXiv 2507.20534), as Megatron does it.
//
// The result does not depend on the layout, since a maximum has no order.
//
// Legend: L layers and N query heads, both of the whole model.
#ifndef MEGATRON_OPTIM_QK_CLIP_H_
#define MEGATRON_OPTIM_QK_CLIP_H_

#include <cstdint>

#include "megatron/comm/process_group.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct QkClipOptions {
  bool enabled = false;
  double threshold = 100;  // greater than 0
  double alpha = 0.5;      // the part of the queries, 0 to 1
};

class QkClip {
 public:
  // Clips the parameters of the buffers that have an attention_layer. The buffers must outlive
  // this, and have no part in host memory.
  QkClip(const QkClipOptions& options, int64_t layers, int64_t heads, ParameterBuffers* buffers,
         MemoryLedger* ledger);

  // Forgets the scores of the last step.
  void StartStep(const Stream& stream);
  // The largest score of each head in the step, fp32; 0 where all were negative.
  const Tensor& largest_scores_LN() const { return scores_LN_; }
  // Collective over the ranks that share a model. Scales what this rank optimizes, and returns the
  // largest score of all heads.
  float Clip(const ProcessGroup& world, const Stream& stream);

 private:
  // Scales the rows of one parameter that belong to groups whose scores are too large.
  void ClipParameter(const FlatParameter& flat, const Stream& stream);
  void ScaleElements(const FlatParameter& flat, const FlatRange& of_parameter, double factor,
                     const Stream& stream);

  const QkClipOptions options_;
  ParameterBuffers* const buffers_;
  Buffer scores_;
  Tensor scores_LN_;
  HostMirror host_scores_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_QK_CLIP_H_
