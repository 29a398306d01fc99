// Whether a layout has trained what one rank trains, within rounding: for the tests of models whose
// samples have any length.
#ifndef MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_
#define MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "megatron/data/sample.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {

// SGD, evaluated at the end, with a layer of each part recomputed.
LayoutOutcome TrainSentences(const ModelOptions& model, const Layout& layout, int steps,
                             const SampleSource& source);

// How a tensor's elements are compared: not where they are nothing but rounding; by their
// differences, to 1e-9, where rounding is of the size of sums that nearly cancelled; else by the
// relative L2 of all, to 2e-6.
enum class Comparison { kNone, kAbsolute, kRelative };

// Losses and norms of all steps to 2e-6, and the tensors, but for the optimizer's, as `comparison`
// says.
void ExpectSameTraining(const LayoutOutcome& got, const LayoutOutcome& want,
                        absl::FunctionRef<Comparison(const std::string& name)> comparison);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_
