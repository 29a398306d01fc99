// How many spans of labels a model predicts rightly, each as a whole.
#ifndef MEGATRON_MODELS_T5_SPAN_ACCURACY_H_
#define MEGATRON_MODELS_T5_SPAN_ACCURACY_H_

#include "megatron/layers/layer_context.h"

namespace megatron {

// hit (fp32): 1 where the label of one of the batch's tokens is the likeliest, else 0. sums (fp32,
// +=): the spans of which each label is, and all spans; on the first of the context-parallel ranks,
// which may each have some of a span's labels.
void CountExactSpans(const LayerContext& ctx, const Tensor& hit_T, const Tensor& sums_2);

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_SPAN_ACCURACY_H_
