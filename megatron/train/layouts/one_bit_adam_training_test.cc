// Tests runs with 1-bit Adam (optim/one_bit_adam_rule.h).

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kFreeze = 3, kSteps = 7;

TrainerOptions RunWith(bool bf16 = false, int freeze_step = kFreeze) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kOneBitAdam);
  if (bf16) run.model.transformer.dtype = DType::kBFloat16;
  run.data_parallel.compression.type = CompressionType::kOneBit;
  run.data_parallel.compression.start_iteration = freeze_step;
  return run;
}

Layout LayoutOf(int tensor, int pipeline, int data, int context = 1) {
  Layout layout;
  layout.tensor = tensor;
  layout.sequence_parallel = tensor > 1;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.context = context;
  return layout;
}

std::vector<Layout> Layouts() {
  return {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 2, 2), LayoutOf(1, 1, 2, 2)};
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    const std::string& load = "", const std::string& save = "") {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.load = load;
  how.save = save;
  return TrainOnLayout(run, how, CountingSource());
}

class OneBitAdamTrainingTest : public ::testing::Test {
 protected:
  ~OneBitAdamTrainingTest() override { EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok()); }
  const std::string directory_ = testing::TempDir() + "/one_bit_adam";
};

// The first rest begins in front of freeze_step, the second one behind it.
TEST_F(OneBitAdamTrainingTest, ARunThatGoesOnHasTheSameBits) {
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    const TrainerOptions run = RunWith(/*bf16=*/layout.pipeline > 1);
    const LayoutOutcome whole = Train(run, layout, kSteps);
    for (const int first : {2, 5}) {
      Train(run, layout, first, /*load=*/"", directory_);
      const LayoutOutcome rest = Train(run, layout, kSteps - first, directory_);
      ASSERT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + first, whole.losses.end()));
      EXPECT_TRUE(rest.state == whole.state);
    }
    EXPECT_LT(whole.losses.back(), whole.losses.front());
  }
}

TEST_F(OneBitAdamTrainingTest, OverlapDecidesNothing) {
  for (Layout layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome want = Train(RunWith(), layout, kSteps);
    layout.overlap = true;
    const LayoutOutcome got = Train(RunWith(), layout, kSteps);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_TRUE(got.state == want.state);
  }
}

// Up to freeze_step ranks are as in a plain run; after it each number of ranks has another curve.
TEST_F(OneBitAdamTrainingTest, LayoutsHaveTheSameCurveBeforeFreezeStep) {
  const LayoutOutcome one = Train(RunWith(), LayoutOf(1, 1, 1), kSteps);
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(RunWith(), layout, kSteps);
    // The loss of a step is that of the weights before it.
    for (int step = 0; step <= kFreeze; ++step)
      EXPECT_NEAR(got.losses[step], one.losses[step], 1e-4) << step;
    EXPECT_NE(got.losses[kFreeze + 1], one.losses[kFreeze + 1]);
  }
}

void ExpectSameLosses(const LayoutOutcome& got, const LayoutOutcome& want, int steps,
                      double tolerance) {
  for (int step = 0; step < steps; ++step)
    EXPECT_NEAR(got.losses[step], want.losses[step], tolerance) << step;
}

// Errors are those of parameters, so that stages decide nothing. Nothing is clipped: the norm is
// rounded differently on several stages, and signs make more of that.
TEST_F(OneBitAdamTrainingTest, APipelineHasTheCurveOfOneStage) {
  TrainerOptions run = RunWith();
  run.clip_grad = 0;
  const LayoutOutcome one = Train(run, LayoutOf(1, 1, 2), kSteps);
  for (const int stages : {2, 4})
    ExpectSameLosses(Train(run, LayoutOf(1, stages, 2), kSteps), one, kSteps, 1e-6);
}

// The gradient of an embedding of which two stages have a copy is the sum of their two sums, however
// many stages there are. On one stage it is one sum, which is rounded differently: so its signs
// differ more with each step.
TEST_F(OneBitAdamTrainingTest, ATiedEmbeddingIsOneTensorOnTheStagesThatHoldIt) {
  TrainerOptions run = RunWith();
  run.model = TinyRun(SmallGpt2(), OptimizerOptions::kOneBitAdam).model;
  ASSERT_TRUE(run.model.tied_embeddings);
  run.clip_grad = 0;
  const LayoutOutcome two = Train(run, LayoutOf(1, 2, 2), kSteps);
  ExpectSameLosses(Train(run, LayoutOf(1, 4, 2), kSteps), two, kSteps, 1e-6);
  // The last of these steps has the weights of two averages by signs.
  ExpectSameLosses(Train(run, LayoutOf(1, 1, 2), kSteps), two, kFreeze + 3, 1e-3);
}

// Errors belong to ranks that are no longer there.
TEST_F(OneBitAdamTrainingTest, AnotherLayoutGoesOnFromTheWeights) {
  const LayoutOutcome first = Train(RunWith(), LayoutOf(1, 1, 4), 5, "", directory_);
  for (const Layout& layout : {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 1, 1)}) {
    const LayoutOutcome loaded = Train(RunWith(), layout, 0, directory_);
    for (const auto& [name, tensor] : loaded.state) {
      if (absl::StrContains(name, "momentum_")) continue;
      EXPECT_TRUE(tensor == first.state.at(name)) << name;
    }
    const LayoutOutcome rest = Train(RunWith(), layout, 1, directory_);
    EXPECT_LT(rest.losses[0], first.losses[0]);
  }
}

// docs/one_bit_adam.md has the formulas.
TEST_F(OneBitAdamTrainingTest, BytesAreThoseOfTheDocumentation) {
  constexpr int kRanks = 4;
  const auto sent = [](int steps, int freeze_step, Collective collective) {
    const LayoutOutcome outcome =
        Train(RunWith(/*bf16=*/false, freeze_step), LayoutOf(1, 1, kRanks), steps);
    return outcome.sent->Of("dp-cp", collective);
  };
  // Gradients of one step: twice a share of 3/4 of 4 bytes, for each weight and its padding.
  const auto plain =
      static_cast<double>(sent(2, 2, Collective::kAllReduce) - sent(1, 1, Collective::kAllReduce));
  const double weights = plain / (2 * 4 * 0.75);
  for (const Collective collective : {Collective::kAllToAll, Collective::kAllGather}) {
    const int64_t one_step = sent(2, 1, collective) - sent(1, 1, collective);
    EXPECT_EQ(sent(3, 1, collective) - sent(1, 1, collective), 2 * one_step);
    // A bit for each weight, and four bytes for each tensor.
    const double signs = 0.75 * weights / 8;
    EXPECT_GT(static_cast<double>(one_step), 0.95 * signs);
    EXPECT_LT(static_cast<double>(one_step), 1.2 * signs + 3 * 4 * 40);
  }
  // Losses and norms alone are left of all-reduces of floats.
  EXPECT_LT(
      static_cast<double>(sent(2, 1, Collective::kAllReduce) - sent(1, 1, Collective::kAllReduce)),
      0.02 * plain);
}

}  // namespace
}  // namespace megatron
