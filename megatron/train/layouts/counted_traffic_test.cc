// Compares the planner's traffic (plan/step_traffic.h) of tensor, context, pipeline and data
// parallelism with the bytes that the trainer's communicators count.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/train/layouts/counted_traffic_harness.h"

namespace megatron::counted_traffic {
namespace {

TEST(CountedTrafficTest, ADenseModelSendsWhatIsPlanned) {
  std::vector<Layout> layouts(14);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = true;
  layouts[2].pipeline = 2;
  layouts[3].data = 2;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kStates;
  layouts[5].data = 2;
  layouts[5].sharding = DataSharding::kGradients;
  layouts[6].context = 2;
  layouts[7].context = 2;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].tensor = layouts[8].pipeline = layouts[8].data = 2;
  layouts[8].sequence_parallel = true;
  layouts[8].chunks = 2;
  layouts[8].sharding = DataSharding::kStates;
  layouts[9].data = 2;
  layouts[9].sharding = DataSharding::kWeights;
  layouts[10].tensor = layouts[10].pipeline = layouts[10].data = 2;
  layouts[10].sharding = DataSharding::kWeights;
  for (int i = 11; i < 14; ++i) {
    layouts[i].data = 4;
    layouts[i].optimizer_instances = 2;
    layouts[i].sharding = static_cast<DataSharding>(i - 10);
    layouts[i].shards_states_over_instances = i > 11;
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectWithinOnePercent(SentOn(LlamaRun(), LlamaModel(), layout, 0));
  }
}

// Samples of which an encoder reads 16 tokens and a decoder writes 8.
class WholeGaps : public SampleSource {
 public:
  static constexpr int kRead = 16, kWritten = 8;

  int64_t size() const override { return 1 << 10; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int i = 0; i < kRead; ++i)
      sample->encoder_tokens.push_back(static_cast<int32_t>((index + 3 * i) % 47));
    for (int i = 0; i < kWritten; ++i) {
      sample->tokens.push_back(i == 0 ? 48 : sample->encoder_tokens[i - 1]);
      sample->labels.push_back(sample->encoder_tokens[i]);
      sample->positions.push_back(i);
    }
    sample->loss_mask.assign(kWritten, 1.0f);
    sample->document_starts = {0};
    sample->spans.assign(kWritten, -1);
    return absl::OkStatus();
  }
};

// As many layers in the encoder as in the decoder.
TEST(CountedTrafficTest, AModelWithAnEncoderSendsWhatIsPlanned) {
  TrainerOptions run = TinyRun(SmallMegatronT5(), OptimizerOptions::kAdamW);
  run.model.num_encoder_layers = kLayers;
  run.model.tied_embeddings = run.model.output_bias = false;
  run.model.max_positions = WholeGaps::kRead;
  TransformerOptions& transformer = run.model.transformer;
  transformer.hidden_dropout = transformer.attention_dropout = 0;
  transformer.num_layers = kLayers;
  transformer.hidden_size = kHidden;
  transformer.ffn_hidden_size = kFfn;
  transformer.num_attention_heads = transformer.num_query_groups = kHeads;
  transformer.kv_channels = kChannels;
  PlanModel model = LlamaModel();
  model.set_layers(2 * kLayers);
  model.set_encoder_layers(kLayers);
  model.set_encoder_sequence(WholeGaps::kRead);
  model.set_kv_heads(kHeads);
  model.set_is_gated(false);
  transformer.norm.kind = ops::Norm::kRmsNorm;
  transformer.linear_bias = transformer.qkv_bias = false;
  std::vector<Layout> layouts(9);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = true;
  layouts[2].pipeline = 2;
  layouts[3].data = 2;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kStates;
  layouts[5].data = 2;
  layouts[5].sharding = DataSharding::kWeights;
  layouts[6].context = 2;
  layouts[7].context = 2;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].context = 2;
  layouts[8].context_parallel = ContextParallel::kGather;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    TrafficStage stage = FirstStage(layout, 0);
    stage.layers.encoders = kLayers;
    stage.layers.dense = layout.pipeline == 1 ? kLayers : 0;
    ExpectWithinOnePercent(SentBy(run, model, layout, stage, WholeGaps(), WholeGaps::kWritten));
  }
}

// A layer of each kind but experts.
constexpr char kHybridLetters[] = "MG*-";

TrainerOptions HybridRun() {
  TrainerOptions run = LlamaRun();
  TransformerOptions& transformer = run.model.transformer;
  transformer.rotary = false;
  transformer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kDelta, HybridLayer::kAttention,
                               HybridLayer::kMlp};
  transformer.mamba = {/*state_dim=*/16, /*head_dim=*/32, /*num_groups=*/4, /*num_heads=*/8};
  transformer.delta = {/*conv_taps=*/4, /*key_head_dim=*/16, /*value_head_dim=*/32,
                       /*num_key_heads=*/4, /*num_value_heads=*/8};
  return run;
}

PlanModel HybridModel() {
  PlanModel model = LlamaModel();
  model.set_hybrid_layers(kHybridLetters);
  model.set_mamba_heads(8);
  model.set_mamba_head_dim(32);
  model.set_mamba_groups(4);
  model.set_mamba_state(16);
  model.set_delta_key_heads(4);
  model.set_delta_key_dim(16);
  model.set_delta_value_heads(8);
  model.set_delta_value_dim(32);
  model.set_delta_taps(4);
  return model;
}

Sent SentByHybrid(const TrainerOptions& run, const PlanModel& model, const Layout& layout) {
  TrafficStage stage = FirstStage(layout, 0);
  stage.layers = PartLayers();
  stage.layers.branches =
      CountBranches(std::string(kHybridLetters).substr(0, kLayers / layout.pipeline));
  return SentBy(run, model, layout, stage, CountingSource(), CountingSource::kLength);
}

TEST(CountedTrafficTest, AHybridModelSendsWhatIsPlanned) {
  std::vector<Layout> layouts(9);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = true;
  layouts[2].pipeline = 2;
  layouts[3].data = 2;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kStates;
  layouts[5].data = 2;
  layouts[5].sharding = DataSharding::kWeights;
  layouts[6].context = 2;
  layouts[7].context = 2;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].tensor = layouts[8].context = 2;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectWithinOnePercent(SentByHybrid(HybridRun(), HybridModel(), layout));
  }
}

// They are few beside the activations, so that what they add is compared.
TEST(CountedTrafficTest, NormsOfAllGroupsSendWhatIsPlanned) {
  TrainerOptions run = HybridRun();
  run.model.transformer.mamba.norm_all_groups = true;
  PlanModel model = HybridModel();
  model.set_mamba_norm_all_groups(true);
  std::vector<Layout> layouts(4);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = true;
  layouts[2].context = 2;
  layouts[3].tensor = layouts[3].context = 2;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    const Sent together = SentByHybrid(run, model, layout);
    const Sent apart = SentByHybrid(HybridRun(), HybridModel(), layout);
    for (const auto& [group, ranks] :
         {std::pair("tp", layout.tensor), std::pair("cp", layout.context)}) {
      if (ranks == 1) continue;
      const double counted = together.counted.at(group) - apart.counted.at(group);
      EXPECT_GT(counted, 0) << group;
      EXPECT_NEAR(together.planned.at(group) - apart.planned.at(group), counted, 0.5) << group;
    }
  }
}

// A model in which each of four ranks may have a group of heads.
TrainerOptions ManyGroupsRun() {
  TrainerOptions run = LlamaRun();
  run.model.transformer.num_query_groups = kHeads;
  return run;
}

PlanModel ManyGroupsModel() {
  PlanModel model = LlamaModel();
  model.set_kv_heads(kHeads);
  return model;
}

// Two ranks have the keys and values of each group, from a projection of its own.
TEST(CountedTrafficTest, RanksThatShareKeysAndValuesSendWhatIsPlanned) {
  std::vector<Layout> layouts(5);
  for (Layout& layout : layouts) layout.tensor = 2 * kGroups;
  layouts[1].sequence_parallel = true;
  layouts[2].context = 2;
  layouts[3].context = 2;
  layouts[3].context_parallel = ContextParallel::kGather;
  layouts[4].data = 2;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectWithinOnePercent(SentOn(LlamaRun(), LlamaModel(), layout, 0));
  }
}

// Ranks that communicate beside forward send pieces, which together are as many bytes.
TEST(CountedTrafficTest, CommunicationBesideForwardSendsNoMore) {
  for (const int ranks : {2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      Layout layout;
      layout.tensor = ranks;
      layout.sequence_parallel = sequence_parallel;
      const Sent in_turn = SentOn(ManyGroupsRun(), ManyGroupsModel(), layout, 0);
      layout.tp_comm_overlap = true;
      SCOPED_TRACE(ToString(layout));
      const Sent beside = SentOn(ManyGroupsRun(), ManyGroupsModel(), layout, 0);
      ExpectWithinOnePercent(beside);
      EXPECT_EQ(beside.counted, in_turn.counted);
    }
  }
}

// Keys go in whole heads, of which each rank has as many.
TEST(CountedTrafficTest, EveryFormOfContextParallelismSendsExactlyWhatIsPlanned) {
  const auto expect_equal = [](Layout layout) {
    SCOPED_TRACE(ToString(layout));
    const Sent sent = SentOn(ManyGroupsRun(), ManyGroupsModel(), layout, 0);
    EXPECT_GT(sent.counted.at("cp"), 0);
    EXPECT_EQ(sent.planned.at("cp"), sent.counted.at("cp"));
  };
  for (const ContextParallel form :
       {ContextParallel::kRing, ContextParallel::kAllToAll, ContextParallel::kGather}) {
    for (const int ranks : {2, 4}) {
      Layout layout;
      layout.context = ranks;
      layout.context_parallel = form;
      expect_equal(layout);
    }
  }
  Layout teams;
  teams.context = 4;
  teams.context_parallel = ContextParallel::kHierarchical;
  teams.context_team_size = 2;
  expect_equal(teams);
  teams.tensor = 2;
  expect_equal(teams);
  teams.context_parallel = ContextParallel::kGather;
  expect_equal(teams);
}

TEST(CountedTrafficTest, AttentionInChunksSendsExactlyWhatIsPlanned) {
  TrainerOptions run = ManyGroupsRun();
  run.model.transformer.recompute.attention_chunk_tokens = 8;
  Layout layout;
  layout.context = 2;
  layout.context_parallel = ContextParallel::kAllToAll;
  const Sent sent = SentOn(run, ManyGroupsModel(), layout, 0);
  EXPECT_GT(sent.counted.at("cp"), 0);
  EXPECT_EQ(sent.planned.at("cp"), sent.counted.at("cp"));
}

// On a GPU each call is at least one launch. A step has 8 micro-batches and 4 layers.
TEST(CountedTrafficTest, CommunicationBesideComputingMakesAsManyCallsAsThis) {
  const auto calls_of = [](const char* group, const Layout& layout) {
    return SentOn(ManyGroupsRun(), ManyGroupsModel(), layout, 0).calls.at(group);
  };
  const auto tensor = [&](bool sequence_parallel, bool tp_comm_overlap) {
    Layout layout;
    layout.tensor = 2;
    layout.sequence_parallel = sequence_parallel;
    layout.tp_comm_overlap = tp_comm_overlap;
    return calls_of("tp", layout);
  };
  EXPECT_EQ(tensor(false, false), 160);
  EXPECT_EQ(tensor(false, true), 352);
  EXPECT_EQ(tensor(true, false), 385);
  EXPECT_EQ(tensor(true, true), 449);
  const auto context = [&](ContextParallel form, int ranks, int team_size) {
    Layout layout;
    layout.context = ranks;
    layout.context_parallel = form;
    layout.context_team_size = team_size;
    return calls_of("cp", layout);
  };
  constexpr int64_t kPasses = 8 * kLayers;
  EXPECT_EQ(context(ContextParallel::kRing, 2, 1), kPasses * 4);
  // Two parts, each sent there and back in both passes.
  EXPECT_EQ(context(ContextParallel::kAllToAll, 2, 1), kPasses * 8);
  // Two gathers in each pass, and two sums.
  EXPECT_EQ(context(ContextParallel::kGather, 2, 1), kPasses * 6);
  EXPECT_EQ(context(ContextParallel::kHierarchical, 4, 2), kPasses * (8 + 2 * 4));
}

TEST(CountedTrafficTest, FullRecomputationSendsTheForwardPassAgain) {
  TrainerOptions run = LlamaRun();
  run.model.layer_recompute = {LayerRecompute::kUniform, 1};
  Layout layout;
  layout.tensor = 2;
  layout.sequence_parallel = true;
  PlanLayout plan = ToPlan(layout);
  plan.recompute = PlanRecompute::kFull;
  LayoutRun how;
  how.layout = layout;
  how.steps = 1;
  const LayoutOutcome outcome = TrainOnLayout(run, how, CountingSource());
  double planned = 0;
  for (const TrafficRow& row : StepTraffic({}, LlamaModel(), plan, FirstStage(layout, 0)))
    planned += SentBytes(row);
  double counted = 0;
  for (const Collective call :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    counted += static_cast<double>(outcome.sent->Of("tp", call));
  }
  EXPECT_NEAR(planned, counted, 0.01 * counted);
}

}  // namespace
}  // namespace megatron::counted_traffic
