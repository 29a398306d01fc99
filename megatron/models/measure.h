// Measures: what a model reports of the batches that go through it.
#ifndef MEGATRON_MODELS_MEASURE_H_
#define MEGATRON_MODELS_MEASURE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace megatron {

enum class MeasureKind {
  kLmLoss,                 // cross-entropy of the labels
  kLmAccuracy,             // share of labels that are the likeliest token
  kExactSpanAccuracy,      // share of spans of which every label is the likeliest token
  kSentenceOrderLoss,      // cross-entropy of BERT's binary head
  kSentenceOrderAccuracy,  // share of sequences that this head judges rightly
  kLoadBalancingLoss,      // auxiliary loss of the routers
  kRouterZLoss,            // mean square of the routers' log-sum-exp
  kMtpLoss,                // cross-entropy of a depth of multi-token prediction
  kClassAccuracy,          // share of sequences, or groups of them, that are classified rightly
};

// A mean over what was measured.
struct Measure {
  MeasureKind kind;
  const char* name;   // Megatron's, where it has one: "lm loss"
  bool is_loss;       // a part of what is minimized; else a share of right predictions
  double factor = 1;  // the loss is multiplied by it in what is minimized
};
// A measure's place in the list is its row of the sums (ModelStage::loss_sums).
using Measures = absl::InlinedVector<Measure, 4>;

// The place of a measure in the list; -1: it is not there.
inline int64_t RowOf(const Measures& measures, MeasureKind kind) {
  for (size_t i = 0; i < measures.size(); ++i) {
    if (measures[i].kind == kind) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace megatron

#endif  // MEGATRON_MODELS_MEASURE_H_
