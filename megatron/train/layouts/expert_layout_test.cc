// Tests what parallel_equivalence_test cannot test on every layout: the steps' load-balancing loss,
// which depends on how many samples all ranks take at once, and the messages of padded experts.

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;
constexpr double kTolerance = 2e-6;

// The same model as in parallel_equivalence_test, which asserts how far apart its routers' scores
// lie.
TrainerOptions RunWithExperts() {
  TrainerOptions run = TinyRun(SmallMixtral(), OptimizerOptions::kSgd);
  run.model.transformer.moe.layers = {false, true, false, true};
  run.model.transformer.init_std = 0.08f;
  return run;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout) {
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  return TrainOnLayout(run, how, CountingSource());
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kTolerance * want.norms[i]) << "step " << i;
    EXPECT_NEAR(got.balances[i], want.balances[i], kTolerance * want.balances[i]) << "step " << i;
  }
}

// Layouts whose ranks take four samples at once, in every way.
std::vector<Layout> LayoutsOfFourSamples() {
  std::vector<Layout> layouts(4);
  layouts[0].tensor = layouts[0].pipeline = 2;
  layouts[0].sequence_parallel = true;
  layouts[0].micro_batch_size = 4;
  layouts[1].context = layouts[1].data = layouts[1].expert = 2;
  layouts[1].micro_batch_size = 2;
  layouts[1].sharding = DataSharding::kStates;
  layouts[2].data = 4;
  layouts[2].expert = 2;
  layouts[3].data = layouts[3].pipeline = 2;
  layouts[3].micro_batch_size = 2;
  layouts[3].schedule = ScheduleKind::kZeroBubbleH1;
  return layouts;
}

TEST(ExpertLayoutTest, TheBalanceDependsOnlyOnTheSamplesTakenAtOnce) {
  TrainerOptions run = RunWithExperts();
  run.model.transformer.moe.balance = BalanceUnit::kStep;
  run.model.transformer.moe.further_balances = {{BalanceUnit::kSample, 0.02f}};
  Layout one;
  one.micro_batch_size = 4;
  const LayoutOutcome alone = Train(run, one);
  for (const Layout& layout : LayoutsOfFourSamples()) {
    SCOPED_TRACE(ToString(layout));
    ExpectTheSame(Train(run, layout), alone);
  }
}

TEST(ExpertLayoutTest, AStepOfOneMicroBatchHasTheBalanceOfThatMicroBatch) {
  TrainerOptions run = RunWithExperts();
  Layout one;
  one.micro_batch_size = 8;
  run.model.transformer.moe.balance = BalanceUnit::kMicroBatch;
  const LayoutOutcome want = Train(run, one);
  run.model.transformer.moe.balance = BalanceUnit::kStep;
  const LayoutOutcome got = Train(run, one);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.balances, want.balances);
  // Two ranks with half of the batch each also balance the whole batch.
  Layout two;
  two.data = 2;
  two.micro_batch_size = 4;
  ExpectTheSame(Train(run, two), want);
}

TEST(ExpertLayoutTest, PaddedExpertsGetMessagesOfOneSizeAndGiveTheSame) {
  TrainerOptions run = RunWithExperts();
  Layout layout;
  layout.data = layout.expert = 2;
  const auto calls = [](const LayoutOutcome& outcome, Collective collective) {
    return outcome.sent->CallsOf("etp-ep", collective);
  };
  const LayoutOutcome plain = Train(run, layout);
  EXPECT_GT(calls(plain, Collective::kAllToAll), 0) << "nobody tells how many rows there are";
  run.model.transformer.moe.pad_to_capacity = true;
  const LayoutOutcome padded = Train(run, layout);
  ExpectTheSame(padded, plain);
  EXPECT_EQ(calls(padded, Collective::kAllToAll), 0);
  // Two layers with experts and 4 micro-batches, dispatch and combine, forward and backward: each
  // message holds the rows of the other rank's two experts, each with room for 2 * 16 / 4 rows of
  // 32 floats.
  EXPECT_EQ(calls(padded, Collective::kAllToAllV), kSteps * 2 * 4 * 4);
  EXPECT_EQ(padded.sent->Of("etp-ep", Collective::kAllToAllV),
            int64_t{kSteps} * 2 * 4 * 4 * (2 * 8 * 32 * 4));
}

void ExpectThatPartsChangeNoBit(TrainerOptions run, const Layout& layout) {
  SCOPED_TRACE(ToString(layout));
  run.model.transformer.moe.num_experts = 8;
  const LayoutOutcome whole = Train(run, layout);
  run.model.transformer.moe.dispatch_in_parts = true;
  const LayoutOutcome parts = Train(run, layout);
  EXPECT_EQ(parts.losses, whole.losses);
  EXPECT_EQ(parts.norms, whole.norms);
  EXPECT_EQ(parts.balances, whole.balances);
  EXPECT_TRUE(parts.state == whole.state);
  const auto calls = [](const LayoutOutcome& outcome) {
    return outcome.sent->CallsOf("etp-ep", Collective::kAllToAllV);
  };
  EXPECT_GT(calls(whole), 0);
  EXPECT_EQ(calls(parts), 2 * calls(whole));
}

TEST(ExpertLayoutTest, DispatchInPartsSendsTwiceAsManyMessagesAndChangesNoBit) {
  Layout two, four, tensor, deferred;
  two.data = two.expert = 2;
  four.data = four.expert = 4;
  tensor.tensor = tensor.data = tensor.expert = 2;
  tensor.sequence_parallel = true;
  deferred.data = deferred.expert = deferred.pipeline = 2;
  deferred.schedule = ScheduleKind::kZeroBubbleH1;
  const TrainerOptions plain = RunWithExperts();
  for (const Layout& layout : {two, four, tensor, deferred})
    ExpectThatPartsChangeNoBit(plain, layout);
  TrainerOptions again = plain, in_float8 = plain, padded = plain;
  again.model.transformer.recompute.experts = true;
  in_float8.model.transformer.dtype = DType::kBFloat16;
  in_float8.model.transformer.ffn_hidden_size = 64;
  in_float8.model.transformer.moe.ffn_hidden_size = 32;
  in_float8.model.transformer.float8.enabled = true;
  padded.model.transformer.moe.pad_to_capacity = true;
  const TrainerOptions biases = TinyRun(SmallBalanced(), OptimizerOptions::kSgd);
  for (const TrainerOptions& run : {again, in_float8, padded, biases}) {
    ExpectThatPartsChangeNoBit(run, two);
    ExpectThatPartsChangeNoBit(run, deferred);
  }
}

// Each rank counts the margins of its own rows.
TEST(ExpertLayoutTest, QuantilesAreThoseOfTheGlobalBatch) {
  TrainerOptions run = RunWithExperts();
  MoeOptions& moe = run.model.transformer.moe;
  moe.router.score = ops::RouterScore::kSigmoid;
  moe.balance = BalanceUnit::kNone;
  moe.capacity_factor.reset();
  const LayoutOutcome unbalanced = Train(run, {});
  moe.expert_bias = true;
  moe.quantile_bins = 100;
  const LayoutOutcome alone = Train(run, {});
  EXPECT_EQ(alone.losses[0], unbalanced.losses[0]);
  EXPECT_GT(std::abs(alone.losses[1] - unbalanced.losses[1]), 10 * kTolerance);
  for (const Layout& layout : LayoutsOfFourSamples()) {
    SCOPED_TRACE(ToString(layout));
    ExpectTheSame(Train(run, layout), alone);
  }
}

// Over 4 ranks on hosts of 2, the bytes that cross are far below those of flat dispatch, and every
// rank's losses are those of one rank.
TEST(ExpertLayoutTest, DeduplicatedDispatchSendsLessBetweenHostsAndGivesTheSame) {
  TrainerOptions run = RunWithExperts();
  run.model.transformer.moe.num_experts = 8;
  run.model.transformer.moe.router.topk = 4;
  run.model.transformer.moe.capacity_factor.reset();
  Layout layout;
  layout.data = layout.expert = 4;
  const LayoutOutcome flat = Train(run, layout);
  layout.ranks_per_host = 2;
  layout.deduplicated_dispatch = true;
  const LayoutOutcome by_host = Train(run, layout);
  ExpectTheSame(by_host, flat);
  EXPECT_EQ(by_host.sent->CallsOf("etp-ep-0", Collective::kAllToAllV), 0);
  // Two of the 3 others are on the other host. A choice of 4 goes there half of the time, a row at
  // most once.
  const int64_t crossing = flat.sent->Of("etp-ep", Collective::kAllToAllV) * 2 / 3;
  EXPECT_LT(by_host.sent->Of("etp-ep-across-hosts", Collective::kAllToAllV), 0.75 * crossing);
}

}  // namespace
}  // namespace megatron
