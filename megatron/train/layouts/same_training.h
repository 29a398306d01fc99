// Compares the training of a layout with that of one rank, within rounding, for the tests of models
// whose samples have any length.
#ifndef MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_
#define MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "megatron/data/sample.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {

// Trains with SGD, with a layer of each part recomputed, and evaluates at the end.
LayoutOutcome TrainSentences(const ModelOptions& model, const Layout& layout, int steps,
                             const SampleSource& source);

// Expects that the losses of SeveralSources in each step, which are there where the source has
// samples, are those of the other run to 1e-5, and that they make up the step's loss.
void ExpectLossesOfSources(const LayoutOutcome& got, const LayoutOutcome& want);

// The ways to compare a tensor's elements. kNone: not at all, for elements that are nothing but
// rounding error. kAbsolute: by their differences, to 1e-9, for sums that nearly cancel, so that
// rounding error is as large as they are. kRelative: by the relative L2 norm of all, to 2e-6.
enum class Comparison { kNone, kAbsolute, kRelative };

// Compares the losses of all steps and the evaluation to 2e-6, and the norms to 1e-5.
void ExpectSameCurve(const LayoutOutcome& got, const LayoutOutcome& want);

// Compares the losses and norms of all steps to 2e-6, and the tensors, except the optimizer's, as
// `comparison` says.
void ExpectSameTraining(const LayoutOutcome& got, const LayoutOutcome& want,
                        absl::FunctionRef<Comparison(const std::string& name)> comparison);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAYOUTS_SAME_TRAINING_H_
