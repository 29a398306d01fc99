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

void ExpectLossesOfSources(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.sources.size(), want.sources.size());
  for (size_t step = 0; step < got.sources.size(); ++step) {
    SCOPED_TRACE(step);
    const std::vector<SourceLoss>&mine = got.sources[step], &theirs = want.sources[step];
    // The first step has no sample of the third source, and none has one of the fourth.
    ASSERT_EQ(mine.size(), step == 0 ? 2u : 3u);
    ASSERT_EQ(theirs.size(), mine.size());
    double sum = 0, weight = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i].source, static_cast<int>(i));
      EXPECT_EQ(mine[i].weight, theirs[i].weight);
      EXPECT_NEAR(mine[i].sum, theirs[i].sum, 1e-5 * theirs[i].sum);
      EXPECT_GT(mine[i].weight, 0);
      sum += mine[i].sum;
      weight += mine[i].weight;
    }
    EXPECT_NEAR(sum / weight, got.lm_losses[step], 2e-6 * got.lm_losses[step]);
    EXPECT_GT(std::abs(mine[0].sum / mine[0].weight - mine[1].sum / mine[1].weight), 1e-6);
  }
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
