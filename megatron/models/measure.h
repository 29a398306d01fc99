// What a model measures of the batches that go through it.
#ifndef MEGATRON_MODELS_MEASURE_H_
#define MEGATRON_MODELS_MEASURE_H_

#include "absl/container/inlined_vector.h"

namespace megatron {

// A mean over what was measured.
struct Measure {
  const char* name;  // Megatron's, where it has one: "lm loss"
  bool is_loss;      // a part of what is minimized; else a share of right predictions
};
using Measures = absl::InlinedVector<Measure, 4>;

}  // namespace megatron

#endif  // MEGATRON_MODELS_MEASURE_H_
