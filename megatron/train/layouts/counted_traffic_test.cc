// Compares the planner's traffic (plan/step_traffic.h) with the bytes that the trainer's
// communicators count.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/step_traffic.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kLayers = 4, kHidden = 256, kFfn = 512, kHeads = 4, kGroups = 2, kChannels = 64;
constexpr int kVocab = 64, kBatch = 8;

TrainerOptions LlamaRun() {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  TransformerOptions& transformer = run.model.transformer;
  transformer.hidden_dropout = transformer.attention_dropout = 0;
  transformer.num_layers = kLayers;
  transformer.hidden_size = kHidden;
  transformer.ffn_hidden_size = kFfn;
  transformer.num_attention_heads = kHeads;
  transformer.num_query_groups = kGroups;
  transformer.kv_channels = kChannels;
  return run;
}

PlanModel LlamaModel() {
  PlanModel model;
  model.set_layers(kLayers);
  model.set_hidden(kHidden);
  model.set_ffn(kFfn);
  model.set_heads(kHeads);
  model.set_kv_heads(kGroups);
  model.set_head_dim(kChannels);
  model.set_vocab(kVocab);
  model.set_is_gated(true);
  return model;
}

PlanContext ToPlan(ContextParallel form) {
  switch (form) {
    case ContextParallel::kRing:
      return PlanContext::kRing;
    case ContextParallel::kAllToAll:
      return PlanContext::kAllToAll;
    case ContextParallel::kGather:
      return PlanContext::kGather;
    case ContextParallel::kHierarchical:
      return PlanContext::kTeams;
  }
  return PlanContext::kRing;
}

PlanCompression ToPlan(const GradientCompressionOptions& options) {
  PlanCompression compression;
  switch (options.type) {
    case CompressionType::kInt8:
      compression.form = PlanCompression::kCodes;
      break;
    case CompressionType::kTopK:
      compression.form = PlanCompression::kLargest;
      compression.density = options.density;
      break;
    case CompressionType::kThreshold:
      compression.form = PlanCompression::kLargest;
      compression.density = options.max_density;
      break;
    case CompressionType::kPowerSgd:
      compression.form = PlanCompression::kLowRank;
      compression.rank = options.rank;
      compression.least_gain = options.min_compression_rate;
      break;
    default:
      break;
  }
  return compression;
}

PlanLayout ToPlan(const Layout& layout) {
  PlanLayout plan;
  plan.tp = layout.tensor;
  plan.cp = layout.context;
  plan.context = ToPlan(layout.context_parallel);
  plan.cp_team = layout.context_team_size;
  plan.pp = layout.pipeline;
  plan.vpp = layout.chunks;
  plan.dp = layout.data;
  plan.ep = layout.expert;
  plan.etp = layout.expert_tensor;
  plan.micro_batch = layout.micro_batch_size;
  plan.micro_batches = kBatch / layout.data / layout.micro_batch_size;
  plan.sequence = CountingSource::kLength;
  plan.precision = PlanPrecision::k32Bits;
  plan.is_sequence_parallel = layout.sequence_parallel;
  plan.shards_parameters = layout.sharding == DataSharding::kWeights;
  plan.shards_gradients = layout.sharding == DataSharding::kGradients;
  plan.ranks_per_host = layout.ranks_per_host;
  plan.deduplicates_dispatch = layout.deduplicated_dispatch;
  plan.hosts = layout.hosts;
  plan.instances = layout.optimizer_instances;
  plan.shards_states_over_instances = layout.shards_states_over_instances;
  return plan;
}

// The first rank holds the embedding, and the head too if its stage is the only one.
TrafficStage FirstStage(const Layout& layout, int mixtures) {
  const int layers = kLayers / layout.pipeline;
  TrafficStage stage;
  stage.layers = {layers - mixtures, mixtures};
  stage.has_head = layout.pipeline == 1;
  stage.messages = (2.0 * layout.chunks - 1) * kBatch / layout.data;
  return stage;
}

// The bytes of a step by the prefix of the group's name, as planned and as counted.
struct Sent {
  std::map<std::string, double> planned, counted;
  std::map<std::string, int64_t> calls;
  std::vector<TrafficRow> rows;
  std::shared_ptr<BytesSent> all;
};

double CountedBytes(const BytesSent& sent, const std::string& group) {
  double bytes = 0;
  for (const Collective call :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kAllToAllV, Collective::kExchange}) {
    bytes += static_cast<double>(sent.Of(group, call));
  }
  return bytes;
}

std::string GroupOf(const TrafficRow& row) {
  switch (row.axis) {
    case TrafficAxis::kTensor:
      return "tp";
    case TrafficAxis::kContext:
      return "cp";
    case TrafficAxis::kExpert:
      return "etp-ep";
    case TrafficAxis::kPipeline:
      return "pp";
    case TrafficAxis::kData:
      return row.is_of_experts ? "edp" : "dp-cp";
  }
  return "";
}

// With islands a run has as many steps as they have between outer steps.
Sent SentBy(const TrainerOptions& run, const PlanModel& model, const Layout& layout,
            const TrafficStage& stage, const SampleSource& source, int64_t length) {
  LayoutRun how;
  how.layout = layout;
  how.steps = std::max<int>(1, static_cast<int>(run.outer.sync_every));
  const LayoutOutcome outcome = TrainOnLayout(run, how, source);
  Implementation program;
  program.set_shards_optimizer(layout.sharding != DataSharding::kNone);
  PlanLayout plan = ToPlan(layout);
  plan.sequence = length;
  plan.quantizes_weights = run.data_parallel.quantized_weights;
  plan.quantizes_gradients = run.data_parallel.quantized_gradients;
  plan.attention_chunk = run.model.transformer.recompute.attention_chunk_tokens;
  plan.sync_every = run.outer.sync_every;
  if (run.optimizer.kind == OptimizerOptions::kMuon) {
    plan.muon_steps = run.optimizer.muon.num_ns_steps;
    plan.muon_mode = static_cast<PlanMuonMode>(run.optimizer.muon.tensor_mode);
    plan.muon_in_16_bits = run.optimizer.muon.product_dtype == DType::kBFloat16;
  }
  plan.is_lamb = run.optimizer.kind == OptimizerOptions::kLamb;
  plan.clips_scores = run.qk_clip.enabled;
  if (run.data_parallel.gradient_dtype != DType::kFloat32) program.set_gradient_bytes(2);
  plan.compression = ToPlan(run.data_parallel.compression);
  if (run.outer.gradient_type == OuterGradientType::kInt8) plan.outer_code_bytes = 1 + 4.0 / 256;
  if (run.outer.gradient_type == OuterGradientType::kE3M0) plan.outer_code_bytes = 0.5 + 1.0 / 128;
  Sent sent;
  sent.all = outcome.sent;
  sent.rows = StepTraffic(program, model, plan, stage);
  for (const TrafficRow& row : sent.rows) sent.planned[GroupOf(row)] += how.steps * SentBytes(row);
  for (const char* group : {"tp", "cp", "pp", "dp-cp", "edp", "etp-ep"}) {
    sent.counted[group] = CountedBytes(*outcome.sent, group);
    for (const Collective call :
         {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
          Collective::kAllToAll, Collective::kAllToAllV, Collective::kExchange}) {
      sent.calls[group] += outcome.sent->CallsOf(group, call);
    }
  }
  return sent;
}

Sent SentOn(const TrainerOptions& run, const PlanModel& model, const Layout& layout, int mixtures) {
  return SentBy(run, model, layout, FirstStage(layout, mixtures), CountingSource(),
                CountingSource::kLength);
}

void ExpectWithinOnePercent(const Sent& sent) {
  EXPECT_FALSE(sent.planned.empty());
  for (const auto& [group, counted] : sent.counted) {
    const auto planned = sent.planned.find(group);
    const double bytes = planned == sent.planned.end() ? 0 : planned->second;
    // Single numbers are left out.
    EXPECT_NEAR(bytes, counted, 0.01 * counted + 256) << group;
  }
}

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
TEST(CountedTrafficTest, AHybridModelSendsWhatIsPlanned) {
  TrainerOptions run = LlamaRun();
  TransformerOptions& transformer = run.model.transformer;
  transformer.rotary = false;
  transformer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kDelta, HybridLayer::kAttention,
                               HybridLayer::kMlp};
  transformer.mamba = {/*state_dim=*/16, /*head_dim=*/32, /*num_groups=*/4, /*num_heads=*/8};
  transformer.delta = {/*conv_taps=*/4, /*key_head_dim=*/16, /*value_head_dim=*/32,
                       /*num_key_heads=*/4, /*num_value_heads=*/8};
  const std::string letters = "MG*-";
  PlanModel model = LlamaModel();
  model.set_hybrid_layers(letters);
  model.set_mamba_heads(8);
  model.set_mamba_head_dim(32);
  model.set_mamba_groups(4);
  model.set_mamba_state(16);
  model.set_delta_key_heads(4);
  model.set_delta_key_dim(16);
  model.set_delta_value_heads(8);
  model.set_delta_value_dim(32);
  model.set_delta_taps(4);
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
    TrafficStage stage = FirstStage(layout, 0);
    stage.layers = PartLayers();
    stage.layers.branches = CountBranches(letters.substr(0, kLayers / layout.pipeline));
    ExpectWithinOnePercent(
        SentBy(run, model, layout, stage, CountingSource(), CountingSource::kLength));
  }
}

// Two hosts of two ranks.
Layout TwoHosts(DataSharding sharding) {
  Layout layout;
  layout.data = 4;
  layout.sharding = sharding;
  return layout;
}

// Returns what the rows of data parallelism send out of domains of two ranks.
double PlannedBetweenHosts(const Sent& sent) {
  Hardware hardware;
  hardware.set_domain(2);
  double bytes = 0;
  for (const TrafficRow& row : sent.rows) bytes += NetworkBytes(hardware, row);
  return bytes;
}

TEST(CountedTrafficTest, HierarchicalCallsSendWhatIsPlannedWithinHostsAndBetweenThem) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    Layout layout = TwoHosts(sharding);
    layout.ranks_per_host = 2;
    SCOPED_TRACE(ToString(layout));
    const Sent sent = SentOn(LlamaRun(), LlamaModel(), layout, 0);
    ExpectWithinOnePercent(sent);
    const double between = CountedBytes(*sent.all, "dp-cp-0-between-hosts");
    EXPECT_GT(between, 0);
    EXPECT_NEAR(PlannedBetweenHosts(sent), between, 0.01 * between + 256);
  }
}

TEST(CountedTrafficTest, SecondaryShardsAndCodesSendWhatIsPlannedWithinHostsAndBetweenThem) {
  for (const int hosts : {1, 2}) {
    for (const bool quantized_weights : {false, true}) {
      for (const bool quantized_gradients : {false, true}) {
        TrainerOptions run = LlamaRun();
        run.data_parallel.quantized_weights = quantized_weights;
        run.data_parallel.quantized_gradients = quantized_gradients;
        Layout layout = TwoHosts(DataSharding::kWeights);
        layout.hosts = hosts;
        SCOPED_TRACE(testing::Message()
                     << ToString(layout) << ", " << quantized_weights << quantized_gradients);
        const Sent sent = SentOn(run, LlamaModel(), layout, 0);
        ExpectWithinOnePercent(sent);
        if (hosts == 1) continue;
        double in_host = 0;
        for (const TrafficRow& row : sent.rows) {
          if (row.group.ranks == 2 && row.group.stride == 1) in_host += SentBytes(row);
        }
        const double counted = CountedBytes(*sent.all, "dp-cp-host");
        EXPECT_NEAR(in_host, counted, 0.01 * counted);
      }
    }
  }
}

// With a threshold of 0 as many elements are sent as there is room for.
TEST(CountedTrafficTest, CompressedGradientsSendWhatIsPlanned) {
  for (const CompressionType type : {CompressionType::kInt8, CompressionType::kTopK,
                                     CompressionType::kThreshold, CompressionType::kPowerSgd}) {
    TrainerOptions run = LlamaRun();
    run.data_parallel.compression.type = type;
    run.data_parallel.compression.rank = 3;
    run.data_parallel.compression.max_density = 0.02;
    std::vector<Layout> layouts = {TwoHosts(DataSharding::kNone), TwoHosts(DataSharding::kStates)};
    layouts.emplace_back().tensor = 2;
    layouts.back().data = 2;
    layouts.emplace_back().pipeline = 2;
    layouts.back().data = 2;
    if (type != CompressionType::kPowerSgd) {
      for (const DataSharding sharding : {DataSharding::kStates, DataSharding::kWeights}) {
        layouts.push_back(TwoHosts(sharding));
        layouts.back().optimizer_instances = 2;
      }
    }
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type) << " on " << ToString(layout));
      ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    }
  }
}

TEST(CountedTrafficTest, GradientsIn16BitsSendWhatIsPlanned) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kGradients}) {
    TrainerOptions run = LlamaRun();
    run.data_parallel.gradient_dtype = DType::kFloat16;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), TwoHosts(sharding), 0));
  }
}

// Between islands go outer gradients alone, and single numbers in each step.
TEST(CountedTrafficTest, IslandsSendWhatIsPlanned) {
  for (const OuterGradientType type :
       {OuterGradientType::kFloat32, OuterGradientType::kInt8, OuterGradientType::kE3M0}) {
    TrainerOptions run = LlamaRun();
    run.outer.sync_every = 2;
    run.outer.gradient_type = type;
    Layout layout = TwoHosts(DataSharding::kStates);
    layout.optimizer_instances = 2;
    const Sent sent = SentOn(run, LlamaModel(), layout, 0);
    ExpectWithinOnePercent(sent);
    const double counted = CountedBytes(*sent.all, "dp-cp-replicas");
    EXPECT_GT(counted, 0);
    EXPECT_NEAR(2 * PlannedBetweenHosts(sent), counted, 0.01 * counted + 256);
  }
}

void ExpectShardsAsPlanned(const TrainerOptions& run) {
  for (const int ranks : {2, 4}) {
    for (const DataSharding sharding :
         {DataSharding::kNone, DataSharding::kStates, DataSharding::kWeights}) {
      Layout layout;
      layout.data = ranks;
      layout.sharding = sharding;
      SCOPED_TRACE(ToString(layout));
      ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    }
  }
}

// Shards of Muon hold whole weights, and are padded to the largest.
TEST(CountedTrafficTest, MuonSendsPaddedShardsAndWhatItsModesNeed) {
  TrainerOptions run = LlamaRun();
  run.optimizer.kind = OptimizerOptions::kMuon;
  ExpectShardsAsPlanned(run);
  Layout layout;
  layout.tensor = 2;
  for (const MuonTensorMode mode :
       {MuonTensorMode::kBlockwise, MuonTensorMode::kDuplicated, MuonTensorMode::kDistributed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    run.optimizer.muon.tensor_mode = mode;
    layout.data = 1;
    layout.sharding = DataSharding::kNone;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    layout.data = 2;
    layout.sharding = DataSharding::kStates;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
  }
}

// Shards of LAMB hold whole parameters, a word table too.
TEST(CountedTrafficTest, LambSendsPaddedShards) {
  TrainerOptions run = LlamaRun();
  run.optimizer.kind = OptimizerOptions::kLamb;
  ExpectShardsAsPlanned(run);
  Layout layout;
  layout.tensor = layout.data = 2;
  layout.sharding = DataSharding::kStates;
  ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
}

// All else that ranks send is the same.
TEST(CountedTrafficTest, LargestScoresAreSentOnceAStep) {
  TrainerOptions run = LlamaRun();
  Layout layout;
  layout.tensor = layout.data = 2;
  const auto counted = [&] {
    return CountedBytes(*SentOn(run, LlamaModel(), layout, 0).all, /*group=*/"");
  };
  const double before = counted();
  run.qk_clip.enabled = true;
  double planned = 0;
  for (const TrafficRow& row : SentOn(run, LlamaModel(), layout, 0).rows) {
    if (row.what == std::string(kLargestScores)) planned += SentBytes(row);
  }
  EXPECT_EQ(planned, 2 * 3 / 4.0 * 4 * kLayers * kHeads);
  EXPECT_EQ(counted() - before, planned);
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
  EXPECT_EQ(tensor(false, false), 168);
  EXPECT_EQ(tensor(false, true), 360);
  EXPECT_EQ(tensor(true, false), 393);
  EXPECT_EQ(tensor(true, true), 457);
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

// Rows are padded to the experts' capacity, which is what they are if the router balances.
TEST(CountedTrafficTest, BalancedExpertsSendWhatIsPlanned) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 128;
  moe.capacity_factor = 1;
  moe.pad_to_capacity = true;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(double(moe.router.topk));
  model.set_expert_ffn(128);
  Layout layout;
  layout.data = layout.expert = 2;
  const Sent sent = SentOn(run, model, layout, kLayers);
  EXPECT_NEAR(sent.planned.at("etp-ep"), sent.counted.at("etp-ep"),
              0.01 * sent.counted.at("etp-ep"));
  EXPECT_NEAR(sent.planned.at("dp-cp"), sent.counted.at("dp-cp"), 0.01 * sent.counted.at("dp-cp"));
}

// Experts gather rows themselves, whose number depends on the router; the others gather and sum up
// activations.
TEST(CountedTrafficTest, TensorParallelRanksOfAMixtureSendWhatIsPlanned) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 128;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(double(moe.router.topk));
  model.set_expert_ffn(128);
  for (const int shared : {0, 128}) {
    moe.shared_ffn_hidden_size = shared;
    model.set_shared_ffn(shared);
    for (const bool sequence_parallel : {false, true}) {
      Layout layout;
      layout.tensor = 2;
      layout.sequence_parallel = sequence_parallel;
      SCOPED_TRACE(testing::Message() << ToString(layout) << ", shared " << shared);
      const Sent sent = SentOn(run, model, layout, kLayers);
      EXPECT_GT(sent.counted.at("tp"), 0);
      EXPECT_NEAR(sent.planned.at("tp"), sent.counted.at("tp"), 0.01 * sent.counted.at("tp"));
    }
  }
}

// Each token goes to all experts, so that each host gets one row of it.
TEST(CountedTrafficTest, DeduplicatedDispatchSendsWhatIsPlannedWithinHostsAndBetweenThem) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = moe.router.topk = 4;
  moe.ffn_hidden_size = 128;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(4);
  model.set_expert_ffn(128);
  Layout whole, cut;
  whole.data = whole.expert = 4;
  cut.tensor = cut.expert_tensor = cut.data = cut.expert = 2;
  for (Layout layout : {whole, cut}) {
    layout.ranks_per_host = 2;
    layout.deduplicated_dispatch = true;
    SCOPED_TRACE(ToString(layout));
    const Sent sent = SentOn(run, model, layout, kLayers);
    double within = 0, across = 0;
    for (const TrafficRow& row : sent.rows) {
      if (row.axis != TrafficAxis::kExpert) continue;
      (row.group.stride == 1 ? within : across) += SentBytes(row);
    }
    EXPECT_GT(across, 0);
    // Numbers of rows are left out.
    for (const auto& [group, planned] :
         {std::make_pair("etp-ep-host", within), std::make_pair("etp-ep-across-hosts", across)}) {
      const double counted = CountedBytes(*sent.all, group);
      EXPECT_NEAR(planned, counted, 0.01 * counted) << group;
    }
    EXPECT_EQ(double(sent.all->Of("etp-ep-across-hosts", Collective::kAllToAllV)), across);
    const double flat = CountedBytes(*sent.all, "etp-ep-0");
    EXPECT_LT(flat, 256);
  }
}

}  // namespace
}  // namespace megatron
