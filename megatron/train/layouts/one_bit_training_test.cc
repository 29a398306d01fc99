// Tests runs with optimizers that average by signs: 1-bit Adam, 1-bit LAMB and 0/1 Adam
// (optim/one_bit_adam_rule.h, one_bit_lamb_rule.h, zero_one_adam_rule.h).

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

using Kind = OptimizerOptions::Kind;

constexpr Kind kAdam = OptimizerOptions::kOneBitAdam, kLamb = OptimizerOptions::kOneBitLamb,
               kZeroOne = OptimizerOptions::kZeroOneAdam;
constexpr Kind kKinds[] = {kAdam, kLamb, kZeroOne};

constexpr int kFreeze = 3, kSteps = 7;

// 0/1 Adam sums gradients in two steps, averages them in the next, joins in steps 4, 8 and 12.
TrainerOptions RunWith(Kind kind, bool bf16 = false, int freeze_step = kFreeze) {
  TrainerOptions run = TinyRun(SmallLlama(), kind);
  if (bf16) run.model.transformer.dtype = DType::kBFloat16;
  run.data_parallel.compression.type = CompressionType::kOneBit;
  run.data_parallel.compression.joins_tensors = kind == kLamb;
  run.optimizer.one_bit_adam_freeze_step = run.optimizer.one_bit_lamb.freeze_step = freeze_step;
  run.optimizer.zero_one = {freeze_step, /*var_update_scaler=*/1, /*local_step_scaler=*/1,
                            /*local_step_clipper=*/4};
  if (kind == kLamb) run.schedule.max_lr = 1e-2;
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

// Tensor-parallel ranks that form a square.
Layout OnSquare(int side, int data) {
  Layout layout = LayoutOf(1, 1, data);
  layout.tensor = side * side;
  layout.tensor_side = layout.micro_batch_size = side;
  return layout;
}

// 1-bit LAMB is refused on squares.
std::vector<Layout> LayoutsOf(Kind kind) {
  std::vector<Layout> layouts = {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 2, 2),
                                 LayoutOf(1, 1, 2, 2)};
  if (kind != kLamb) layouts.push_back(OnSquare(2, 2));
  return layouts;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    const std::string& load = "", const std::string& save = "",
                    int eval_interval = 0) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.load = load;
  how.save = save;
  how.eval_interval = eval_interval;
  // What is evaluated would be other samples in the run that goes on.
  how.evaluate = save.empty();
  return TrainOnLayout(run, how, CountingSource());
}

class OneBitTrainingTest : public ::testing::TestWithParam<Kind> {
 protected:
  ~OneBitTrainingTest() override { EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok()); }
  TrainerOptions Run(bool bf16 = false) const { return RunWith(GetParam(), bf16); }
  const std::string directory_ = testing::TempDir() + "/one_bit";
};

// The first rest begins in front of freeze_step, the second one behind it. There ranks that take
// steps of 0/1 Adam differ.
TEST_P(OneBitTrainingTest, ARunThatGoesOnHasTheSameBits) {
  for (const Layout& layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(ToString(layout));
    const TrainerOptions run = Run(/*bf16=*/layout.pipeline > 1);
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

TEST_P(OneBitTrainingTest, OverlapDecidesNothing) {
  for (Layout layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome want = Train(Run(), layout, kSteps);
    layout.overlap = true;
    const LayoutOutcome got = Train(Run(), layout, kSteps);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_TRUE(got.state == want.state);
  }
}

TEST_P(OneBitTrainingTest, EvaluationsChangeNothing) {
  const Layout layout = LayoutOf(1, 2, 2);
  const LayoutOutcome want = Train(Run(/*bf16=*/true), layout, kSteps);
  const LayoutOutcome got =
      Train(Run(/*bf16=*/true), layout, kSteps, /*load=*/"", /*save=*/"", /*eval_interval=*/1);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_TRUE(got.state == want.state);
}

// As long as gradients are summed ranks are as in a plain run; then each number of ranks has a
// curve of its own.
TEST_P(OneBitTrainingTest, LayoutsHaveTheSameCurveAsLongAsGradientsAreSummed) {
  const int sums = GetParam() == kZeroOne ? kFreeze - 1 : kFreeze;
  const LayoutOutcome one = Train(Run(), LayoutOf(1, 1, 1), kSteps);
  for (const Layout& layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(Run(), layout, kSteps);
    // The loss of a step is that of the weights before it.
    for (int step = 0; step <= sums; ++step)
      EXPECT_NEAR(got.losses[step], one.losses[step], 1e-4) << step;
    EXPECT_NE(got.losses[sums + 1], one.losses[sums + 1]);
  }
}

void ExpectSameLosses(const LayoutOutcome& got, const LayoutOutcome& want, int steps,
                      double tolerance) {
  for (int step = 0; step < steps; ++step)
    EXPECT_NEAR(got.losses[step], want.losses[step], tolerance) << step;
}

// Errors belong to ranks that are no longer there.
TEST_P(OneBitTrainingTest, AnotherLayoutGoesOnFromTheWeights) {
  // Step 5 is a local one of 0/1 Adam.
  const LayoutOutcome first = Train(Run(), LayoutOf(1, 1, 4), 5, "", directory_);
  const double evaluation = Train(Run(), LayoutOf(1, 1, 4), 5).evaluation;
  for (const Layout& layout : {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 1, 1)}) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome loaded = Train(Run(), layout, 0, directory_);
    for (const auto& [name, tensor] : loaded.state) {
      if (absl::StrContains(name, "momentum_error") || absl::StrContains(name, "momentum_mean"))
        continue;
      EXPECT_TRUE(tensor == first.state.at(name)) << name;
    }
    // The evaluation of the first run was that of what its ranks had in common.
    EXPECT_NEAR(loaded.evaluation, evaluation, 1e-5);
    const LayoutOutcome rest = Train(Run(), layout, 1, directory_);
    EXPECT_LT(rest.losses[0], first.losses[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OneBitTrainingTest, ::testing::ValuesIn(kKinds),
                         [](const ::testing::TestParamInfo<Kind>& info) {
                           return info.param == kAdam   ? "OneBitAdam"
                                  : info.param == kLamb ? "OneBitLamb"
                                                        : "ZeroOneAdam";
                         });

// Errors are those of parameters, so that stages decide nothing. Nothing is clipped: the norm is
// rounded differently on several stages, and signs make more of that. 1-bit LAMB sends buckets,
// which are those of blocks of layers.
TEST(OneBitPipelineTest, APipelineHasTheCurveOfOneStage) {
  for (const Kind kind : kKinds) {
    TrainerOptions run = RunWith(kind);
    run.clip_grad = 0;
    const LayoutOutcome one = Train(run, LayoutOf(1, 1, 2), kSteps);
    for (const int stages : {2, 4}) {
      SCOPED_TRACE(stages);
      ExpectSameLosses(Train(run, LayoutOf(1, stages, 2), kSteps), one, kSteps, 1e-6);
    }
  }
}

// The gradient of an embedding of which two stages have a copy is the sum of their two sums, for
// any number of stages. On one stage it is one sum, which is rounded differently: so its signs
// differ more with each step.
TEST(OneBitPipelineTest, ATiedEmbeddingIsOneTensorOnTheStagesThatHoldIt) {
  for (const Kind kind : kKinds) {
    TrainerOptions run = RunWith(kind);
    run.model = TinyRun(SmallGpt2(), kind).model;
    ASSERT_TRUE(run.model.tied_embeddings);
    run.clip_grad = 0;
    const LayoutOutcome two = Train(run, LayoutOf(1, 2, 2), kSteps);
    ExpectSameLosses(Train(run, LayoutOf(1, 4, 2), kSteps), two, kSteps, 1e-6);
    // The last of these steps has the weights of two averages by signs.
    if (kind == kAdam)
      ExpectSameLosses(Train(run, LayoutOf(1, 1, 2), kSteps), two, kFreeze + 3, 1e-3);
  }
}

// Each step of 1-bit LAMB depends on the norms of whole tensors. Long first steps, which are signs
// of gradients, make more of rounding.
TEST(OneBitLambTrainingTest, TensorParallelRanksHaveTheCurveOfOneBeforeFreezeStep) {
  TrainerOptions run = RunWith(kLamb, /*bf16=*/false, /*freeze_step=*/kSteps);
  run.schedule.max_lr = 1e-3;
  const LayoutOutcome one = Train(run, LayoutOf(1, 1, 1), kSteps);
  for (const int ranks : {2, 4})
    ExpectSameLosses(Train(run, LayoutOf(ranks, 1, 1), kSteps), one, kSteps, 1e-4);
}

// What a rank sends in a step of each kind of collective.
struct SentInStep {
  double sums, all_to_all, all_gather;
};

std::vector<SentInStep> SentInSteps(Kind kind, int steps) {
  std::vector<SentInStep> of_steps;
  SentInStep before = {0, 0, 0};
  for (int count = 0; count <= steps; ++count) {
    LayoutRun how;
    how.layout = LayoutOf(1, 1, 4);
    how.steps = count;
    const LayoutOutcome outcome =
        TrainOnLayout(RunWith(kind, /*bf16=*/false, /*freeze_step=*/2), how, CountingSource());
    const auto sent = [&](Collective collective) {
      return static_cast<double>(outcome.sent->Of("dp-cp", collective));
    };
    const SentInStep all = {sent(Collective::kAllReduce), sent(Collective::kAllToAll),
                            sent(Collective::kAllGather)};
    if (count > 0) {
      of_steps.push_back({all.sums - before.sums, all.all_to_all - before.all_to_all,
                          all.all_gather - before.all_gather});
    }
    before = all;
  }
  return of_steps;
}

// docs/one_bit_optimizers.md has the formulas.
TEST(OneBitBytesTest, BytesAreThoseOfTheDocumentation) {
  for (const Kind kind : kKinds) {
    const std::vector<SentInStep> steps = SentInSteps(kind, 6);
    // Gradients of one step: twice a share of 3/4 of 4 bytes, for each weight and its padding.
    const double plain = steps[0].sums, weights = plain / (2 * 4 * 0.75);
    EXPECT_EQ(steps[0].all_to_all, 0);
    EXPECT_EQ(steps[1].sums, plain);
    const double signs = 0.75 * weights / 8;
    for (int step = 2; step < 6; ++step) {
      SCOPED_TRACE(step);
      // Losses and norms alone are left of all-reduces of floats.
      EXPECT_LT(steps[step].sums, 0.02 * plain);
      // 0/1 Adam's intervals are 1, 2 and 4: steps 3 and 4 of 6 join, counted from 1.
      const bool joins = kind != kZeroOne || step < 4;
      for (const double sent : {steps[step].all_to_all, steps[step].all_gather}) {
        if (!joins) {
          EXPECT_EQ(sent, 0);
          continue;
        }
        // A bit for each weight, and four bytes for each tensor.
        EXPECT_GT(sent, 0.95 * signs);
        EXPECT_LT(sent, 1.2 * signs + 3 * 4 * 40);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
