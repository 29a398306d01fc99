#include "megatron/plan/step_traffic.h"

#include <map>

#include "gtest/gtest.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/data_traffic.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/tensor_grid_traffic.h"

namespace megatron {
namespace {

PlanModel Llama() {
  PlanModel model;
  model.set_layers(32);
  model.set_hidden(4096);
  model.set_ffn(14336);
  model.set_heads(32);
  model.set_kv_heads(8);
  model.set_head_dim(128);
  model.set_vocab(128256);
  model.set_is_gated(true);
  return model;
}

// 2 samples of 4,096 tokens.
PlanLayout LayoutOf(int64_t micro_batches) {
  PlanLayout layout;
  layout.micro_batch = 2;
  layout.sequence = 4096;
  layout.micro_batches = micro_batches;
  return layout;
}

TrafficStage AllLayers() {
  TrafficStage stage;
  stage.layers.dense = 32;
  return stage;
}

std::map<TrafficAxis, double> SentByAxis(const Implementation& program, const PlanModel& model,
                                         const PlanLayout& layout, const TrafficStage& stage) {
  std::map<TrafficAxis, double> sent;
  for (const TrafficRow& row : StepTraffic(program, model, layout, stage))
    sent[row.axis] += SentBytes(row);
  return sent;
}

constexpr double kActivation = 2.0 * 8192 * 4096;  // bytes of a micro-batch's hidden states

TEST(StepTrafficTest, OneRankSendsNothing) {
  EXPECT_TRUE(StepTraffic({}, Llama(), LayoutOf(4), AllLayers()).empty());
}

TEST(StepTrafficTest, TensorParallelRanksSumTwiceInEitherPass) {
  PlanLayout layout = LayoutOf(4);
  layout.tp = 8;
  auto sent = SentByAxis({}, Llama(), layout, AllLayers());
  // Each of 8 ranks sends 2 * 7 / 8 of a sum. 32 layers have 4 sums, embedding and head 1 each, the
  // loss 3 of 4 bytes a token.
  const double sums = 4 * (32 * 4 + 2) * kActivation + 4 * 3 * 4.0 * 8192;
  EXPECT_DOUBLE_EQ(sent[TrafficAxis::kTensor], 1.75 * sums);
  EXPECT_EQ(sent.size(), 1);

  layout.recompute = PlanRecompute::kFull;
  sent = SentByAxis({}, Llama(), layout, AllLayers());
  EXPECT_DOUBLE_EQ(sent[TrafficAxis::kTensor], 1.75 * (sums + 4 * 32 * 2 * kActivation));
}

TEST(StepTrafficTest, SequenceParallelRanksGatherOnceMore) {
  PlanLayout layout = LayoutOf(4);
  layout.tp = 8;
  layout.is_sequence_parallel = true;
  const auto sent = SentByAxis({}, Llama(), layout, AllLayers());
  // A layer gathers 6 times and scatters 4 times, the embedding 1 and 1, the head 2 and 1;
  // gradients of 65 norms and the sums of the loss.
  const double parts = 4 * (32 * 10 + 5) * kActivation;
  const double sums = 4 * 4096.0 * 65 + 4 * 3 * 4.0 * 8192;
  EXPECT_DOUBLE_EQ(sent.at(TrafficAxis::kTensor), 0.875 * parts + 1.75 * sums);
}

TEST(StepTrafficTest, AStageSendsEachMicroBatchToItsNeighbours) {
  PlanLayout layout = LayoutOf(8);
  layout.tp = 2;
  layout.pp = 4;
  layout.is_sequence_parallel = true;
  TrafficStage stage;
  stage.layers.dense = 8;
  stage.has_embedding = stage.has_head = false;
  stage.messages = 2 * 8;
  const auto sent = SentByAxis({}, Llama(), layout, stage);
  EXPECT_DOUBLE_EQ(sent.at(TrafficAxis::kPipeline), 16 * kActivation / 2);
}

TEST(StepTrafficTest, DataParallelRanksReduceGradientsAndShareWeights) {
  const double layer = 4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096;
  const double parameters = 32 * layer + 2 * 128256.0 * 4096 + 4096;
  EXPECT_NEAR(parameters, 8.03e9, 0.01e9);
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  Implementation program;
  program.set_gradient_bytes(4);
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kData),
                   8 * 15 / 16.0 * parameters);
  program.set_shards_optimizer(true);
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kData),
                   6 * 15 / 16.0 * parameters);
  layout.shards_parameters = true;
  // The backward pass does not need the embedding.
  const double table = 128256.0 * 4096;
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kData),
                   4 * 15 / 16.0 * (8 * parameters - 2 * table));
  PlanModel tied = Llama();
  tied.set_is_tied(true);
  EXPECT_DOUBLE_EQ(SentByAxis(program, tied, layout, AllLayers()).at(TrafficAxis::kData),
                   4 * 15 / 16.0 * (8 * (parameters - table) + 2 * table));
}

// docs/gradient_compression.md has the formulas.
TEST(StepTrafficTest, CompressedGradientsSendWhatTheDocumentationSays) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  Implementation program;
  program.set_gradient_bytes(4);
  const auto sent = [&] {
    return SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kData);
  };
  constexpr double kShare = 15 / 16.0;
  const double parameters = sent() / (8 * kShare);
  layout.compression.form = PlanCompression::kCodes;
  EXPECT_DOUBLE_EQ(sent(), 2 * kShare * (1 + 4.0 / 256) * parameters);
  layout.compression.form = PlanCompression::kLargest;
  layout.compression.density = 0.01;
  EXPECT_DOUBLE_EQ(sent(), 15 * 8 * 0.01 * parameters);
  layout.compression.form = PlanCompression::kLowRank;
  layout.compression.rank = 4;
  // Queries, keys and values, outputs; three matrices of the MLP; two tables; norms as they are.
  const double layer = (6144 + 4096) + (4096 + 4096) + 3 * (14336 + 4096);
  EXPECT_DOUBLE_EQ(sent(),
                   8 * kShare * (4 * (32 * layer + 2 * (128256.0 + 4096)) + (2 * 32 + 1) * 4096));
  // Factors of rank 2,000 are no fewer elements than half of any of the matrices.
  layout.compression.rank = 2000;
  EXPECT_DOUBLE_EQ(sent(), 8 * kShare * parameters);
  // Weights are gathered as they are.
  layout.compression.form = PlanCompression::kCodes;
  program.set_shards_optimizer(true);
  EXPECT_DOUBLE_EQ(sent(), kShare * (1 + 4.0 / 256 + 2) * parameters);
}

TEST(StepTrafficTest, InstancesSendShardsBetweenThemOnceAStep) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  Implementation program;
  program.set_shards_optimizer(true);
  const auto sent = [&] {
    return SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kData);
  };
  const double parameters = sent() / 6 * 16 / 15;
  layout.instances = 4;
  EXPECT_DOUBLE_EQ(sent(), 6 * 0.75 * parameters + 2 * 4 * 0.75 * parameters / 4);
  layout.shards_states_over_instances = true;
  EXPECT_DOUBLE_EQ(sent(), 6 * 0.75 * parameters + 6 * 0.75 * parameters / 4);
}

Hardware Gpus() {
  Hardware gpu;
  gpu.set_domain(8);
  gpu.set_link_gb_per_s(400);
  gpu.set_network_gb_per_s(50);
  gpu.set_memory_gb_per_s(1000);
  return gpu;
}

Implementation Ideal() {
  Implementation program;
  program.set_shards_optimizer(true);
  program.set_gradient_bytes(4);
  program.set_link_efficiency(1);
  program.set_network_efficiency(1);
  program.set_memory_efficiency(1);
  return program;
}

// On a slow network the time is about that of the bytes.
TEST(StepTrafficTest, CompressedGradientsTakeLessTimeOnASlowNetwork) {
  Hardware gpu = Gpus();
  gpu.set_network_gb_per_s(1);
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  Implementation program = Ideal();
  program.set_shards_optimizer(false);
  const auto seconds = [&] {
    double all = 0;
    for (const TrafficRow& row : StepTraffic(program, Llama(), layout, AllLayers()))
      all += TrafficSeconds(gpu, program, row);
    return all;
  };
  const double plain = seconds();
  layout.compression.form = PlanCompression::kLowRank;
  layout.compression.rank = 4;
  EXPECT_LT(seconds(), 0.05 * plain);
  layout.compression.form = PlanCompression::kLargest;
  layout.compression.density = 0.01;
  EXPECT_LT(seconds(), 0.5 * plain);
}

struct DataCost {
  double sent = 0, over_network = 0, seconds = 0;
};

DataCost CostOf(const PlanLayout& layout, const Hardware& gpu) {
  DataCost cost;
  for (const TrafficRow& row : StepTraffic(Ideal(), Llama(), layout, AllLayers())) {
    if (row.axis != TrafficAxis::kData) continue;
    cost.sent += SentBytes(row);
    cost.over_network += NetworkBytes(gpu, row);
    cost.seconds += TrafficSeconds(gpu, Ideal(), row);
  }
  return cost;
}

// 16 ranks on two nodes: 6 bytes of a parameter go once around.
TEST(StepTrafficTest, HierarchicalCallsSendAsMuchAndLessOfItOverTheNetwork) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  const double parameters = CostOf(layout, Gpus()).sent / 6 * 16 / 15;
  Hardware processors = Gpus();
  processors.set_cores(8);
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network, 6 * 15 / 16.0 * parameters / 8);
  EXPECT_DOUBLE_EQ(CostOf(layout, processors).over_network, 6 * 8 / 16.0 * parameters);
  Hardware gpus = Gpus();
  // So slow a network that latencies of parts of 4 MiB do not count.
  gpus.set_network_gb_per_s(0.1);
  processors.set_network_gb_per_s(0.1);
  const DataCost flat = CostOf(layout, processors);
  layout.ranks_per_host = 8;
  for (const Hardware& hardware : {gpus, processors}) {
    const DataCost cost = CostOf(layout, hardware);
    EXPECT_DOUBLE_EQ(cost.sent, flat.sent);
    EXPECT_DOUBLE_EQ(cost.over_network, 6 * 0.5 * parameters / 8);
    // What goes over links is beside it.
    const double between = 6 * 0.5 * parameters / 8 / 0.1e9;
    EXPECT_GT(cost.seconds, between);
    EXPECT_LT(cost.seconds, 1.02 * between);
  }
  // Ranks that send from rank to rank send an eighth.
  EXPECT_LT(CostOf(layout, processors).seconds, 0.2 * flat.seconds);
  // With a fast network the latencies of so many parts take longer than a ring does.
  PlanLayout ring = layout;
  ring.ranks_per_host = 0;
  EXPECT_GT(CostOf(layout, Gpus()).seconds, CostOf(ring, Gpus()).seconds);
  // A host as large as the group, or with one rank of it, changes nothing.
  layout.ranks_per_host = 16;
  EXPECT_EQ(CostOf(layout, processors).seconds, flat.seconds);
  layout.ranks_per_host = 1;
  EXPECT_EQ(CostOf(layout, processors).seconds, flat.seconds);
}

// docs/experts.md, "Bytes": N rows of a rank, D other hosts of a token, K choices, H b bytes a row.
TEST(StepTrafficTest, DeduplicatedDispatchSendsARowToEachHostOnce) {
  PlanModel model = Llama();
  model.set_experts(64);
  model.set_experts_per_token(8);
  model.set_expert_ffn(1024);
  PlanLayout layout = LayoutOf(3);
  layout.dp = layout.ep = 16;
  layout.ranks_per_host = 8;
  TrafficStage stage;
  stage.layers = {0, 32};
  const auto sent = [&](bool between_hosts) {
    double bytes = 0;
    for (const TrafficRow& row : StepTraffic({}, model, layout, stage)) {
      if (row.axis != TrafficAxis::kExpert) continue;
      EXPECT_TRUE(row.is_of_experts);
      bytes += between_hosts ? NetworkBytes(Gpus(), row) : SentBytes(row);
    }
    return bytes;
  };
  const double rows = 8192, row = 4096 * 2, calls = 3 * 32;
  EXPECT_DOUBLE_EQ(sent(false), calls * 4 * rows * 8 * row * 15 / 16);
  EXPECT_DOUBLE_EQ(sent(true), calls * 4 * rows * 8 * row / 2);
  layout.deduplicates_dispatch = true;
  const double others = ExpectedHosts(2, 64, 8) / 2;
  const double across = rows * others * (4 * row + 3 * 4 * 8);
  EXPECT_NEAR(sent(true) / (calls * across), 1, 1e-12);
  EXPECT_NEAR(sent(false) / (calls * (across + 4 * rows * 8 * row * 7 / 8)), 1, 1e-12);
  // Forward passes are made again, gradients are not.
  layout.recompute = PlanRecompute::kFull;
  EXPECT_NEAR(sent(true) / (calls * rows * others * (6 * row + 5 * 4 * 8)), 1, 1e-12);
}

TEST(StepTrafficTest, TheLargestScoresGoToAllRanks) {
  PlanLayout layout = LayoutOf(4);
  layout.tp = 2;
  layout.dp = 4;
  const auto sent = SentByAxis({}, Llama(), layout, AllLayers());
  layout.clips_scores = true;
  const auto clipped = SentByAxis({}, Llama(), layout, AllLayers());
  EXPECT_DOUBLE_EQ(clipped.at(TrafficAxis::kData) - sent.at(TrafficAxis::kData),
                   2 * 7 / 8.0 * 4 * 32 * 32);
  EXPECT_EQ(clipped.at(TrafficAxis::kTensor), sent.at(TrafficAxis::kTensor));
}

TEST(StepTrafficTest, SecondaryShardsKeepGathersWithinAHost) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  layout.shards_parameters = true;
  const double table = 128256.0 * 4096;
  const double parameters = (CostOf(layout, Gpus()).sent / 4 * 16 / 15 + 2 * table) / 8;
  layout.hosts = 2;
  const double gradients = 4 * 4 * 15 / 16.0;
  EXPECT_DOUBLE_EQ(
      CostOf(layout, Gpus()).sent,
      parameters * (gradients + 2 * 15 / 16.0 + 7 * 2 * 7 / 8.0) - 4 * 2 * 7 / 8.0 * table);
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network,
                   parameters * (gradients + 2 * 15 / 16.0) / 8);
  layout.quantizes_weights = true;
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network,
                   parameters * (gradients + (1 + 4 / 256.0) * 15 / 16.0) / 8);
  layout.quantizes_gradients = true;
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network,
                   parameters * (4 * (0.5 + 4 / 64.0) * 0.5 + (1 + 4 / 256.0) * 15 / 16.0) / 8);
}

// Codes pay where the network is slow, and not where memory is.
TEST(StepTrafficTest, CodesTakeTheTimeOfTheMemoryThatTheyPassOver) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  layout.shards_parameters = true;
  PlanLayout codes = layout;
  codes.hosts = 2;
  codes.quantizes_weights = codes.quantizes_gradients = true;
  Hardware gpu = Gpus();
  gpu.set_network_gb_per_s(0.1);
  EXPECT_LT(CostOf(codes, gpu).seconds, 0.5 * CostOf(layout, gpu).seconds);
  gpu.set_memory_gb_per_s(0.5);
  EXPECT_GT(CostOf(codes, gpu).seconds, CostOf(layout, gpu).seconds);
}

TEST(StepTrafficTest, IslandsSendOuterGradientsSeldom) {
  PlanLayout layout = LayoutOf(4);
  layout.dp = 16;
  layout.instances = 2;
  const double every_step = CostOf(layout, Gpus()).over_network;
  layout.sync_every = 100;
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network, every_step / 100);
  // An all-reduce of 4 bytes sends 2 (i - 1) / i of them; codes are gathered: i - 1.
  layout.outer_code_bytes = 0.5 + 1.0 / 128;
  EXPECT_DOUBLE_EQ(CostOf(layout, Gpus()).over_network, every_step / 100 * (0.5 + 1.0 / 128) / 4);
}

TEST(StepTrafficTest, ContextParallelRanksPassKeysOnExchangeHeadsOrGather) {
  PlanLayout layout = LayoutOf(1);
  layout.cp = 4;
  const double keys = 2 * 2048.0 * 1024;  // elements
  Implementation program;
  // 3 hops in either pass, and 4 of gradients of 32 bits.
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kContext),
                   32 * (2 * 3 * 2 * keys + 4 * 4 * keys));
  layout.context = PlanContext::kAllToAll;
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kContext),
                   32 * 2 * 0.75 * 2 * (2 * 2048.0 * 4096 + keys));
  // Keys of 3 other ranks in either pass, and their gradients of 32 bits.
  layout.context = PlanContext::kGather;
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kContext),
                   32 * 3 * (2 * 2 * keys + 4 * keys));
  // Half of what a rank has to the other rank of its team, and keys to the other team.
  layout.context = PlanContext::kTeams;
  layout.cp_team = 2;
  EXPECT_DOUBLE_EQ(SentByAxis(program, Llama(), layout, AllLayers()).at(TrafficAxis::kContext),
                   32 * (2 * 0.5 * 2 * (2 * 2048.0 * 4096 + keys) + 2 * 2 * keys + 2 * 4 * keys));
}

// Blocks of the layers go to other ranks in each micro-batch, and gradients to other levels once.
TEST(StepTrafficTest, GridsSendBlocksAndLevelsGradients) {
  const LayerMatrices matrices = MatricesOf(4096, 14336, true, 32, 8, 128);
  PlanLayout layout = LayoutOf(4);
  layout.tp = 8;
  for (const bool is_cube : {false, true}) {
    layout.grid = {2, 2, is_cube};
    const auto sent = SentByAxis({}, Llama(), layout, AllLayers());
    const double blocks = 4 * 32 * BytesReceivedOnGrid(matrices, layout.grid, 8192, 2);
    const double tables = 2 * 4096.0 * 128256;
    const double gradients = 4 * (32 * double(matrices.elements) + tables) / 4;
    const double want = is_cube ? blocks : blocks + gradients;
    EXPECT_NEAR(sent.at(TrafficAxis::kTensor) / want, 1, 1e-12);
    EXPECT_EQ(sent.size(), 1);
  }
}

TEST(StepTrafficTest, RowsGoToTheirExpertsAndComeBack) {
  PlanModel model = Llama();
  model.set_experts(64);
  model.set_experts_per_token(2);
  model.set_expert_ffn(1024);
  PlanLayout layout = LayoutOf(1);
  layout.dp = layout.ep = 8;
  TrafficStage stage;
  stage.layers.mixtures = 32;
  const auto rows = StepTraffic({}, model, layout, stage);
  double exchanged = 0;
  for (const TrafficRow& row : rows) {
    if (row.axis == TrafficAxis::kExpert) exchanged += SentBytes(row);
    EXPECT_STRNE(row.what, "gradients of experts");  // nobody has a copy
  }
  EXPECT_DOUBLE_EQ(exchanged, 32 * 4 * 7 / 8.0 * 2 * kActivation);
}

// 4 nodes of 8 GPUs: a pipeline of 4 lies within a node, and its copies on all.
TEST(StepTrafficTest, DataParallelRanksMayLieOutermost) {
  PlanLayout layout;
  layout.tp = 2;
  layout.pp = 4;
  layout.dp = 4;
  EXPECT_EQ(layout.pipeline_stride(), 8);
  EXPECT_EQ(RanksInDomain(DenseCopies(layout), 8), 4);
  layout.data_is_outermost = true;
  EXPECT_EQ(layout.pipeline_stride(), 2);
  EXPECT_EQ(RanksInDomain(DenseCopies(layout), 8), 1);
  EXPECT_EQ(RanksInDomain(DenseCopies(layout), 16), 2);
  // Context-parallel ranks stay neighbours.
  layout.cp = 2;
  EXPECT_EQ(layout.pipeline_stride(), 4);
  EXPECT_EQ(RanksInDomain(DenseCopies(layout), 8), 2);
  EXPECT_EQ(RanksInDomain(DenseCopies(layout), 32), 4);
}

}  // namespace
}  // namespace megatron
