// Tests that frozen parameters keep their values on every layout, while the others are trained as
// they are without, and that frozen ones take no memory but their weights' and no messages.

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/collective.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;
constexpr double kTolerance = 1e-5;

TrainerOptions Freezing(const ModelOptions& model, const std::vector<std::string>& freeze) {
  TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
  run.freeze = freeze;
  return run;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps = kSteps,
                    const SampleSource& source = CountingSource()) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = steps > 0;
  return TrainOnLayout(run, how, source);
}

bool IsState(const std::string& name) { return absl::StartsWith(name, "optimizer.state."); }

bool IsFrozen(const TrainerOptions& run, const std::string& name) {
  for (const std::string& expression : run.freeze) {
    if (std::regex_search(name, std::regex(expression))) return true;
  }
  return false;
}

// Expects that frozen weights have the bits of `first`, and that there are no states of them.
void ExpectFrozen(const TrainerOptions& run, const LayoutOutcome& got, const LayoutOutcome& first) {
  int frozen = 0;
  for (const auto& [name, tensor] : got.state) {
    if (!IsFrozen(run, name)) continue;
    EXPECT_FALSE(IsState(name)) << name;
    EXPECT_TRUE(tensor == first.state.at(name)) << name;
    ++frozen;
  }
  EXPECT_GT(frozen, 0);
}

// Models whose first update can be compared with that of a run that freezes nothing: gradients are
// the same, and none of them is clipped.
void ExpectFirstUpdateOfTheOthers(const ModelOptions& model, const SampleSource& source,
                                  const std::vector<std::vector<std::string>>& sets,
                                  const Layout& layout = Layout()) {
  TrainerOptions all = Freezing(model, {});
  all.clip_grad = 0;
  const LayoutOutcome first = Train(all, Layout(), 0, source), want = Train(all, layout, 1, source);
  for (const std::vector<std::string>& freeze : sets) {
    SCOPED_TRACE(freeze[0]);
    TrainerOptions run = all;
    run.freeze = freeze;
    const LayoutOutcome got = Train(run, layout, 1, source);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_LT(got.norms[0], want.norms[0]);
    ExpectFrozen(run, got, first);
    int trained = 0;
    for (const auto& [name, tensor] : got.state) {
      if (IsFrozen(run, name)) continue;
      EXPECT_TRUE(tensor == want.state.at(name)) << name;
      trained += !IsState(name) && !(tensor == first.state.at(name));
    }
    EXPECT_GT(trained, 0);
  }
}

TEST(FreezeLayoutTest, TheOthersAreUpdatedAsTheyAreWithout) {
  const std::vector<std::vector<std::string>> sets = {
      {"embedding"}, {R"(layers\.[0-2]\.)"}, {"weight$"},           {"bias$"},
      {"norm"},      {"linear_(qkv|fc2)"},   {"linear_(proj|fc1)"}, {"^decoder"}};
  ExpectFirstUpdateOfTheOthers(SmallGpt2(), CountingSource(), sets);
  ExpectFirstUpdateOfTheOthers(
      SmallLlama(), CountingSource(),
      {{"embedding"}, {"output_layer"}, {R"(layers\.3\.)", "norm"}, {"linear"}});
  ModelOptions mixtral = SmallMixtral();
  ExpectFirstUpdateOfTheOthers(
      mixtral, CountingSource(),
      {{"experts"}, {"router"}, {"linear_fc1"}, {"embedding", "attention"}});
}

// Where the first layers are frozen, and what is in front of them, gradients end behind them.
std::vector<std::vector<std::string>> FrozenInFront() {
  return {{"embedding", R"(layers\.0\.)"},
          {"embedding", R"(layers\.[0-2]\.)"},
          {"embedding", R"(layers\.)"}};
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(12);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].pipeline = 4;  // all of the first stage is frozen
  layouts[2].pipeline = 2;
  layouts[2].schedule = ScheduleKind::kZeroBubbleH1;
  layouts[3].context = layouts[3].data = 2;
  layouts[4].data = 4;
  layouts[4].sharding = DataSharding::kStates;
  layouts[5].data = 2;
  layouts[5].pipeline = layouts[5].chunks = 2;
  layouts[5].sharding = DataSharding::kGradients;
  layouts[6].data = layouts[6].tensor = layouts[6].pipeline = 2;
  layouts[6].sharding = DataSharding::kWeights;
  layouts[7].data = 4;
  layouts[7].sharding = DataSharding::kWeights;
  layouts[7].overlap = true;
  layouts[8].data = 4;
  layouts[8].sharding = DataSharding::kStates;
  layouts[8].optimizer_instances = 2;
  layouts[8].shards_states_over_instances = true;
  layouts[8].overlap = true;
  layouts[9].pipeline = layouts[9].chunks = 2;
  layouts[9].schedule = ScheduleKind::kZeroBubbleV;
  layouts[10].pipeline = layouts[10].data = 2;
  layouts[10].schedule = ScheduleKind::kGPipe;
  layouts[10].sharding = DataSharding::kStates;
  layouts[11].pipeline = 2;
  layouts[11].layers = {1, 3};
  layouts[11].context = 2;
  return layouts;
}

TEST(FreezeLayoutTest, TheOthersAreUpdatedAsTheyAreWithoutOnEveryLayout) {
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectFirstUpdateOfTheOthers(SmallGpt2(), CountingSource(), FrozenInFront(), layout);
    ExpectFirstUpdateOfTheOthers(SmallLlama(), CountingSource(), {FrozenInFront()[1]}, layout);
  }
}

TEST(FreezeLayoutTest, TheOthersOfAnyModelAreUpdatedAsTheyAreWithout) {
  Layout stages;
  stages.pipeline = 2;
  for (const Layout& layout : {Layout(), stages}) {
    SCOPED_TRACE(ToString(layout));
    ExpectFirstUpdateOfTheOthers(SmallBert(), PairSource(), FrozenInFront(), layout);
    ExpectFirstUpdateOfTheOthers(SmallPostNormBert(), PairSource(), FrozenInFront(), layout);
    ExpectFirstUpdateOfTheOthers(SmallMtp(), CountingSource(), FrozenInFront(), layout);
    ExpectFirstUpdateOfTheOthers(SmallHybrid(), CountingSource(), FrozenInFront(), layout);
    ExpectFirstUpdateOfTheOthers(SmallLatent(), CountingSource(), FrozenInFront(), layout);
    // The encoder, a part of it, or all but the decoder's last layers.
    const std::vector<std::vector<std::string>> of_t5 = {
        {"^embedding", R"(^encoder\.layers\.[01]\.)"},
        {"^embedding", "^encoder"},
        {"^embedding", "relative_pos", "^encoder", R"(^decoder\.layers\.0\.)"},
        {"^embedding", "relative_pos", "layers"}};
    ExpectFirstUpdateOfTheOthers(SmallT5(), GapSource(), of_t5, layout);
    ExpectFirstUpdateOfTheOthers(SmallMegatronT5(), GapSource(), {of_t5[0], of_t5[1]}, layout);
  }
}

TEST(FreezeLayoutTest, RecomputationOfFrozenLayersChangesNoBit) {
  for (const LayerRecompute& recompute :
       {LayerRecompute{LayerRecompute::kUniform, 2}, LayerRecompute{LayerRecompute::kUniform, 3},
        LayerRecompute{LayerRecompute::kBlock, 2}}) {
    TrainerOptions run = Freezing(SmallLlama(), FrozenInFront()[0]);
    const LayoutOutcome want = Train(run, Layout());
    run.model.layer_recompute = recompute;
    const LayoutOutcome got = Train(run, Layout());
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_TRUE(got.state == want.state);
  }
}

// What routers add up in backward otherwise: losses, and what the biases follow from.
TEST(FreezeLayoutTest, RoutersOfFrozenLayersAreMeasuredAsTheyAreWithout) {
  ModelOptions recomputed = SmallMixtral();
  recomputed.transformer.recompute.experts = true;
  for (const ModelOptions& model : {SmallMixtral(), SmallDeepSeek(), recomputed}) {
    Layout layout;
    layout.data = layout.expert = 2;
    const LayoutOutcome want = Train(Freezing(model, {}), layout, 1),
                        got = Train(Freezing(model, FrozenInFront()[1]), layout, 1);
    ASSERT_EQ(got.balances.size(), 1u);
    EXPECT_GT(want.balances[0], 0);
    EXPECT_NEAR(got.balances[0], want.balances[0], 1e-5 * want.balances[0]);
    EXPECT_NEAR(got.z_losses[0], want.z_losses[0], 1e-5 * want.z_losses[0]);
    int biases = 0;
    for (const auto& [name, tensor] : want.state) {
      if (!absl::StrContains(name, "expert_bias")) continue;
      EXPECT_TRUE(got.state.at(name) == tensor) << name;
      ++biases;
    }
    EXPECT_EQ(biases > 0, model.transformer.moe.expert_bias);
  }
}

// Half of the layers keep nothing; so do stages in front of the first trained layer, which get no
// gradients either.
TEST(FreezeLayoutTest, FrozenFirstLayersKeepNothing) {
  const auto held = [](const std::vector<std::string>& freeze, int stages) {
    Layout layout;
    layout.pipeline = stages;
    return Train(Freezing(SmallLlama(), freeze), layout).memory;
  };
  const auto saved = [&](const std::vector<std::string>& freeze, int stages) {
    return held(freeze, stages).at("activations/saved");
  };
  const std::vector<std::string> half = {"embedding", R"(layers\.[01]\.)"};
  const int64_t all = saved({}, 1), three = saved({"embedding", R"(layers\.0\.)"}, 1),
                two = saved(half, 1);
  // A frozen layer saves as much as another one.
  EXPECT_LT(two, three);
  EXPECT_LT(three, all);
  // Gradients that flow through frozen layers need what these keep.
  EXPECT_GT(saved({R"(layers\.[01]\.)"}, 1), two);
  // Stage 0 of 4 has up to 4 micro-batches in flight; frozen, one at a time.
  EXPECT_LE(2 * saved(half, 4), saved({}, 4));
  // Two outputs that are sent, of 16 tokens and 32 channels.
  EXPECT_EQ(held(half, 4).at("activations/edges"), 2 * 16 * 32 * 4);
  EXPECT_GT(held({}, 4).at("activations/edges"), 2 * 16 * 32 * 4);
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * kTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kTolerance * want.evaluation);
}

// The word table of GPT-2 is the output matrix too, and lies on two stages.
TEST(FreezeLayoutTest, EveryLayoutTrainsWhatOneRankTrains) {
  const std::vector<std::string> freeze = {"embedding", R"(layers\.0\.)", R"(layers\.2\..*weight)"};
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TrainerOptions run = Freezing(model, freeze);
    const LayoutOutcome first = Train(run, Layout(), 0), want = Train(run, Layout());
    ExpectFrozen(run, want, first);
    EXPECT_LT(want.losses.back(), want.losses.front());
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome got = Train(run, layout);
      ExpectTheSame(got, want);
      ExpectFrozen(run, got, first);
      EXPECT_EQ(got.state.size(), want.state.size());
    }
  }
}

TEST(FreezeLayoutTest, ExpertsAreFrozenOnTheRanksThatHoldThem) {
  std::vector<Layout> layouts(4);
  layouts[0].data = layouts[0].expert = 2;
  layouts[1].data = 4;
  layouts[1].expert = 2;
  layouts[1].sharding = DataSharding::kWeights;
  layouts[2].tensor = layouts[2].expert_tensor = 2;
  layouts[3].data = 4;
  layouts[3].expert = 2;
  layouts[3].sharding = DataSharding::kStates;
  layouts[3].overlap = true;
  TrainerOptions run = Freezing(SmallMixtral(), {R"(layers\.[01]\..*experts)", "embedding"});
  run.model.transformer.init_std = 0.08f;
  const LayoutOutcome first = Train(run, Layout(), 0), want = Train(run, Layout());
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(run, layout);
    ExpectTheSame(got, want);
    ExpectFrozen(run, got, first);
  }
}

TEST(FreezeLayoutTest, ShardingDoesNotChangeABit) {
  for (const bool bf16 : {false, true}) {
    TrainerOptions run = Freezing(SmallLlama(), {"embedding", R"(layers\.[13]\.)"});
    if (bf16) run.model.transformer.dtype = DType::kBFloat16;
    Layout layout;
    layout.data = 8;  // one micro-batch a step, so that sums have one order
    const LayoutOutcome want = Train(run, layout);
    for (const DataSharding sharding :
         {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
      for (const bool overlap : {false, true}) {
        layout.sharding = sharding;
        layout.overlap = overlap;
        SCOPED_TRACE(absl::StrCat(ToString(layout), bf16 ? " bf16" : " fp32"));
        const LayoutOutcome got = Train(run, layout);
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_TRUE(got.state == want.state);
      }
    }
  }
}

// Only the last norm is trained: 32 numbers, in a bucket of 64 and a section of 128.
TEST(FreezeLayoutTest, FrozenParametersHaveNoGradientsNoStatesAndNoMessages) {
  const TrainerOptions run = Freezing(SmallLlama(), {"embedding", "output_layer", "layers"});
  constexpr int64_t kBucketBytes = 64 * 4, kSectionBytes = 128 * 4;
  Layout layout;
  layout.data = 2;
  LayoutOutcome outcome = Train(run, layout);
  EXPECT_EQ(outcome.memory.at("gradients"), kSectionBytes);
  EXPECT_EQ(outcome.memory.at("exp_avg"), kSectionBytes);
  EXPECT_EQ(outcome.memory.at("exp_avg_sq"), kSectionBytes);
  // The tokens of a batch are counted, norms and losses summed besides: less than 64 bytes a step.
  const auto reduced = [&] { return outcome.sent->Of("dp-cp", Collective::kAllReduce); };
  EXPECT_GE(reduced(), kSteps * kBucketBytes);
  EXPECT_LT(reduced(), kSteps * (kBucketBytes + 64));
  // Weights are gathered once a step with ZeRO-1, and frozen ones are not.
  layout.sharding = DataSharding::kStates;
  outcome = Train(run, layout);
  EXPECT_EQ(outcome.sent->Of("dp-cp", Collective::kAllGather), kSteps * kBucketBytes / 2);
  EXPECT_EQ(outcome.sent->Of("dp-cp", Collective::kReduceScatter), kSteps * kBucketBytes / 2);
  // With ZeRO-3 each rank stores half of the frozen weights, too. They have no padding.
  layout.sharding = DataSharding::kWeights;
  outcome = Train(run, layout);
  EXPECT_EQ(outcome.memory.at("gradients"), kBucketBytes / 2);
  EXPECT_EQ(outcome.sent->Of("dp-cp", Collective::kReduceScatter) * 2,
            outcome.sent->CallsOf("dp-cp", Collective::kReduceScatter) * kBucketBytes);
  const LayoutOutcome all = Train(Freezing(SmallLlama(), {}), layout);
  EXPECT_EQ(outcome.memory.at("weights"), all.memory.at("weights"));
  EXPECT_LT(outcome.memory.at("gradients/whole"), all.memory.at("gradients/whole"));
}

TEST(FreezeLayoutTest, CheckpointsGoFromLayoutToLayout) {
  for (const bool bf16 : {false, true}) {
    TrainerOptions run = Freezing(SmallGpt2(), {"embedding", R"(layers\.[12]\.)"});
    if (bf16) run.model.transformer.dtype = DType::kBFloat16;
    ExpectThatCheckpointsMove(run, kSteps, Layouts());
  }
}

// The stage of multi-token prediction ends backward, or the one behind it, which has heads alone.
TEST(FreezeLayoutTest, HeadsAreTrainedBehindMultiTokenPredictionOnAStageOfItsOwn) {
  ModelOptions model = SmallMtp();
  model.tied_embeddings = false;
  Layout layout;
  layout.pipeline = 4;
  layout.layers = {2, 2, 0, 0};
  layout.mtp_before_last = true;
  ExpectFirstUpdateOfTheOthers(model, CountingSource(),
                               {{"decoder\\.layers", "embedding"}, {"decoder", "embedding", "mtp"}},
                               layout);
}

}  // namespace
}  // namespace megatron
