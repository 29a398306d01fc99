// Diagnostics on many layouts: the values are those of one rank, and training is that without them,
// to the bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;
// Updates are small differences of weights, which lose digits.
constexpr double kTolerance = 2e-5, kUpdateTolerance = 1e-3;

LayoutOutcome Train(TrainerOptions run, const Layout& layout, int64_t interval,
                    const SampleSource& source = CountingSource(), int steps = kSteps) {
  run.diagnostics_interval = interval;
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  return TrainOnLayout(run, how, source);
}

using Values = std::map<std::string, double>;

Values ValuesOf(const DiagnosticValues& diagnostics) {
  Values values;
  for (const LayerValue& value : diagnostics.layers) values[value.name] = value.value;
  EXPECT_EQ(values.size(), diagnostics.layers.size()) << "two values have one name";
  return values;
}

void ExpectNear(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.diagnostics.size(), want.diagnostics.size());
  for (size_t step = 0; step < got.diagnostics.size(); ++step) {
    const Values mine = ValuesOf(got.diagnostics[step]), one = ValuesOf(want.diagnostics[step]);
    ASSERT_EQ(mine.size(), one.size()) << step;
    for (const auto& [name, value] : one) {
      ASSERT_TRUE(mine.count(name)) << name;
      const double tolerance = absl::StartsWith(name, "update-") ? kUpdateTolerance : kTolerance;
      EXPECT_NEAR(mine.at(name), value, tolerance * value) << name << ", step " << step;
    }
    ASSERT_EQ(got.diagnostics[step].experts.size(), want.diagnostics[step].experts.size());
    for (size_t i = 0; i < got.diagnostics[step].experts.size(); ++i) {
      EXPECT_EQ(got.diagnostics[step].experts[i].layer, want.diagnostics[step].experts[i].layer);
      EXPECT_EQ(got.diagnostics[step].experts[i].choices,
                want.diagnostics[step].experts[i].choices);
    }
  }
}

void ExpectTheSameBits(const LayoutOutcome& got, const LayoutOutcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.state, want.state);
}

std::vector<Layout> Layouts(bool has_experts) {
  std::vector<Layout> layouts(7);
  layouts[0].tensor = 2;
  layouts[0].data = 2;
  layouts[0].sharding = DataSharding::kStates;
  layouts[0].overlap = true;
  layouts[1].tensor = layouts[1].pipeline = 2;
  layouts[1].sequence_parallel = true;
  layouts[1].micro_batch_size = 2;
  layouts[2].data = 4;
  layouts[2].sharding = DataSharding::kGradients;
  layouts[3].data = 2;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[3].overlap = true;
  layouts[4].context = 2;
  layouts[4].data = 2;
  layouts[5].pipeline = 2;
  layouts[5].chunks = 2;
  layouts[5].schedule = ScheduleKind::kZeroBubbleV;
  layouts[6].data = 2;
  layouts[6].tensor = 2;
  layouts[6].sequence_parallel = true;
  if (has_experts) {
    layouts[2].expert = 2;
    layouts[6].expert = 2;
    layouts[6].expert_tensor = 2;
  }
  return layouts;
}

TEST(DiagnosticsLayoutTest, GptHasOneRanksValuesInEveryLayoutAndTheSameBits) {
  for (const OptimizerOptions::Kind kind : {OptimizerOptions::kAdamW, OptimizerOptions::kSgd}) {
    const TrainerOptions run = TinyRun(SmallGpt2(), kind);
    const LayoutOutcome one = Train(run, Layout(), /*interval=*/1);
    ExpectTheSameBits(one, Train(run, Layout(), /*interval=*/0));
    // 4 norms of 6 rows, and 3 extremes of 4 layers.
    EXPECT_EQ(one.diagnostics[0].layers.size(), 4 * 6 + 3 * 4);
    if (kind == OptimizerOptions::kAdamW) continue;  // its updates are mostly signs of rounding
    for (const Layout& layout : Layouts(/*has_experts=*/false)) {
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome measured = Train(run, layout, /*interval=*/1);
      ExpectNear(measured, one);
      ExpectTheSameBits(measured, Train(run, layout, /*interval=*/0));
    }
  }
}

TrainerOptions RunWithExperts() {
  TrainerOptions run = TinyRun(SmallMixtral(), OptimizerOptions::kSgd);
  run.model.transformer.moe.layers = {false, true, false, true};
  run.model.transformer.init_std = 0.08f;
  return run;
}

TEST(DiagnosticsLayoutTest, ExpertsHaveOneRanksLoadInEveryLayout) {
  TrainerOptions run = RunWithExperts();
  for (const bool drops : {false, true}) {
    run.model.transformer.moe.capacity_factor = drops ? std::optional<double>(1) : std::nullopt;
    const LayoutOutcome one = Train(run, Layout(), 1);
    ASSERT_EQ(one.diagnostics[0].experts.size(), 2);
    const ExpertLoad& load = one.diagnostics[0].experts[0];
    EXPECT_EQ(load.layer, "decoder.layers.1");
    const int64_t experts = run.model.transformer.moe.num_experts;
    ASSERT_EQ(static_cast<int64_t>(load.choices.size()), experts);
    int64_t total = 0, most = 0;
    for (const int64_t choices : load.choices) {
      total += choices;
      most = std::max(most, choices);
    }
    // 8 samples of 16 tokens.
    EXPECT_EQ(total, 8 * CountingSource::kLength * run.model.transformer.moe.router.topk);
    const Values values = ValuesOf(one.diagnostics[0]);
    EXPECT_NEAR(values.at("expert-load-max/decoder.layers.1"),
                static_cast<double>(most * experts) / static_cast<double>(total), 1e-12);
    EXPECT_EQ(values.at("expert-dropped/decoder.layers.1") > 0, drops);
    EXPECT_GT(values.at("expert-entropy/decoder.layers.1"), 0.3);
    EXPECT_LE(values.at("expert-entropy/decoder.layers.1"), 1);
    for (const Layout& layout : Layouts(/*has_experts=*/true)) {
      SCOPED_TRACE(ToString(layout));
      ExpectNear(Train(run, layout, 1), one);
    }
  }
}

TEST(DiagnosticsLayoutTest, AnEncoderAndItsDecoderAreMeasured) {
  const TrainerOptions run = TinyRun(SmallT5(), OptimizerOptions::kSgd);
  const LayoutOutcome one = Train(run, Layout(), 1, GapSource());
  const Values values = ValuesOf(one.diagnostics[0]);
  EXPECT_GT(values.at("output-rms/encoder.layers.0"), 0);
  EXPECT_GT(values.at("output-rms/decoder.layers.0"), 0);
  Layout layout;
  layout.tensor = layout.data = 2;
  const LayoutOutcome measured = Train(run, layout, 1, GapSource());
  ExpectNear(measured, one);
  ExpectTheSameBits(measured, Train(run, layout, 0, GapSource()));
}

double NormOf(const WholeTensor& tensor) {
  EXPECT_EQ(tensor.dtype, DType::kFloat32);
  const auto* const values = reinterpret_cast<const float*>(tensor.bytes.data());
  double sum = 0;
  for (int64_t i = 0; i < tensor.shape.numel(); ++i) sum += double{values[i]} * values[i];
  return std::sqrt(sum);
}

// The norms of all layers together.
double Together(const Values& values, absl::string_view metric) {
  double sum = 0;
  for (const auto& [name, value] : values) {
    if (absl::StartsWith(name, metric)) sum += value * value;
  }
  return std::sqrt(sum);
}

TEST(DiagnosticsLayoutTest, NormsOfLayersAreThoseOfTheirParametersAndMakeUpTheWhole) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  const LayoutOutcome longer = Train(run, Layout(), 1, CountingSource(), 3);
  const LayoutOutcome shorter = Train(run, Layout(), 1, CountingSource(), 2);
  const Values values = ValuesOf(longer.diagnostics[2]);
  double weights = 0, changes = 0;
  for (const auto& [name, tensor] : longer.state) {
    if (!absl::StartsWith(name, "decoder.layers.2.")) continue;
    weights += std::pow(NormOf(tensor), 2);
    WholeTensor change = tensor;
    auto* const after = reinterpret_cast<float*>(change.bytes.data());
    const auto* const before = reinterpret_cast<const float*>(shorter.state.at(name).bytes.data());
    for (int64_t i = 0; i < tensor.shape.numel(); ++i) after[i] -= before[i];
    changes += std::pow(NormOf(change), 2);
  }
  EXPECT_GT(changes, 0);
  EXPECT_NEAR(values.at("params-norm/decoder.layers.2"), std::sqrt(weights), 1e-5);
  EXPECT_NEAR(values.at("update-norm/decoder.layers.2"), std::sqrt(changes), 1e-5);
  EXPECT_NEAR(values.at("update-ratio/decoder.layers.2"), std::sqrt(changes / weights), 1e-5);
  EXPECT_NEAR(Together(values, "grad-norm/"), longer.norms[2], 1e-5 * longer.norms[2]);
}

TEST(DiagnosticsLayoutTest, OnlyMultiplesOfTheIntervalAreMeasured) {
  const LayoutOutcome outcome =
      Train(TinyRun(SmallGpt2(), OptimizerOptions::kSgd), Layout(), 3, CountingSource(), 6);
  for (int step = 1; step <= 6; ++step)
    EXPECT_EQ(outcome.diagnostics[step - 1].layers.empty(), step % 3 != 0) << step;
}

// Four parts of two samples are the gradients of four ranks, or of the two micro-batches of two
// ranks that reduce each of them.
TEST(DiagnosticsLayoutTest, TheNoiseScaleDoesNotDependOnWhoComputesTheParts) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  run.model.tied_embeddings = false;  // a tied one does not count on several stages
  Layout four;
  four.data = 4;
  four.micro_batch_size = 2;
  const LayoutOutcome want = Train(run, four, 1);
  // At first the noise of so few samples hides the gradient.
  ASSERT_TRUE(want.diagnostics[kSteps - 1].noise_scale.has_value());
  EXPECT_GT(*want.diagnostics[kSteps - 1].noise_scale, 0);
  std::vector<Layout> layouts(3, four);
  layouts[0].sharding = DataSharding::kWeights;
  layouts[1].data = 2;
  layouts[1].sharding = DataSharding::kGradients;
  layouts[2].pipeline = 2;
  layouts[2].overlap = true;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(run, layout, 1);
    for (int step = 0; step < kSteps; ++step) {
      const std::optional<double> scale = want.diagnostics[step].noise_scale;
      ASSERT_EQ(got.diagnostics[step].noise_scale.has_value(), scale.has_value()) << step;
      // A difference of large numbers is divided by.
      if (scale) {
        EXPECT_NEAR(*got.diagnostics[step].noise_scale, *scale, 1e-3 * *scale) << step;
      }
    }
  }
  EXPECT_FALSE(Train(run, Layout{1, 2}, 1).diagnostics[0].noise_scale.has_value());
}

}  // namespace
}  // namespace megatron
