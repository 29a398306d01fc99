#include "megatron/train/layouts/same_training.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr double kTolerance = 2e-6, kAbsoluteTolerance = 1e-9;
constexpr double kNormTolerance = 1e-5;

struct Differences {
  double relative = 0;  // relative L2 norm
  double largest = 0;
};

Differences Compare(const WholeTensor& got, const WholeTensor& want) {
  const auto *x = reinterpret_cast<const float*>(got.bytes.data()),
             *y = reinterpret_cast<const float*>(want.bytes.data());
  double squares = 0, norm = 0;
  Differences differences;
  for (int64_t i = 0; i < want.shape.numel(); ++i) {
    const double difference = double{x[i]} - y[i];
    squares += difference * difference;
    norm += double{y[i]} * y[i];
    differences.largest = std::max(differences.largest, std::abs(difference));
  }
  differences.relative = std::sqrt(squares / std::max(norm, 1e-30));
  return differences;
}

}  // namespace

LayoutOutcome TrainSentences(const ModelOptions& model, const Layout& layout, int steps,
                             const SampleSource& source) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = true;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.model.layer_recompute = {LayerRecompute::kBlock, 1};
  return TrainOnLayout(run, how, source);
}

void ExpectSameCurve(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kNormTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kTolerance * want.evaluation);
}

void ExpectSameTraining(const LayoutOutcome& got, const LayoutOutcome& want,
                        absl::FunctionRef<Comparison(const std::string& name)> comparison) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kTolerance * want.evaluation);
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state) {
    const Comparison how = comparison(name);
    if (how == Comparison::kNone || absl::StartsWith(name, "optimizer.")) continue;
    ASSERT_EQ(got.state.at(name).shape, tensor.shape) << name;
    const Differences differences = Compare(got.state.at(name), tensor);
    if (how == Comparison::kAbsolute) {
      EXPECT_LE(differences.largest, kAbsoluteTolerance) << name;
    } else {
      EXPECT_LE(differences.relative, kTolerance) << name;
    }
  }
}

}  // namespace megatron
