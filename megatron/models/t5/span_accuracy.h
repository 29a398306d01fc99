// The number of spans of labels that a model predicts rightly, each as a whole.
#ifndef MEGATRON_MODELS_T5_SPAN_ACCURACY_H_
#define MEGATRON_MODELS_T5_SPAN_ACCURACY_H_

#include "megatron/layers/layer_context.h"

namespace megatron {

// hit (fp32) is 1 for each of the batch's tokens whose label is the likeliest, else 0. Adds to sums
// (fp32) the number of spans of which every label is the likeliest, and that of all spans. Only the
// first of the context-parallel ranks does, since each may have some of a span's labels.
void CountExactSpans(const LayerContext& ctx, const Tensor& hit_T, const Tensor& sums_2);

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_SPAN_ACCURACY_H_
