// Compares training whose ranks communicate by NCCL, which threads imitate here
// (comm/nccl/fake_nccl.h), with training on the CPU: sums in the order of ranks give the same bits,
// and overlapping communication changes none.
#include <memory>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "megatron/comm/nccl/fake_nccl.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

using ::testing::IsSupersetOf;

constexpr int kSteps = 3;

class NcclPlacementTest : public testing::Test {
 protected:
  // The world ends with its communicator.
  std::shared_ptr<Communicator> OverNccl(std::shared_ptr<Communicator> host) {
    NcclWorldOptions options;
    options.sum_in_rank_order = true;
    auto world = NcclWorld::Create(&nccl_, std::move(host), options);
    CHECK(world.ok()) << world.status();
    const std::shared_ptr<NcclWorld> owner = *std::move(world);
    return std::shared_ptr<Communicator>(owner, owner->communicator().get());
  }

  void ExpectSameAsOnTheCpu(const ModelOptions& model, const Layout& layout) {
    ExpectSameAsOnTheCpu(model, layout, source_, /*graphs=*/false);
  }
  void ExpectSameWithGraphs(const ModelOptions& model, const Layout& layout) {
    ExpectSameAsOnTheCpu(model, layout, source_, /*graphs=*/true);
  }

  void ExpectSameAsOnTheCpu(const ModelOptions& model, const Layout& layout,
                            const SampleSource& source, bool graphs, int steps = kSteps) {
    ExpectSameAsOnTheCpu(TinyRun(model, OptimizerOptions::kAdamW), layout, source, graphs, steps);
  }
  void ExpectSameAsOnTheCpu(TrainerOptions options, const Layout& layout,
                            const SampleSource& source, bool graphs, int steps = kSteps) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun run;
    run.layout = layout;
    run.steps = steps;
    run.evaluate = true;
    const LayoutOutcome cpu = TrainOnLayout(options, run, source);
    options.cuda_graphs.enabled = graphs;
    options.cuda_graphs.warmup_steps = 1;
    run.device = DeviceType::kCuda;
    run.wrap = [this](std::shared_ptr<Communicator> host) { return OverNccl(std::move(host)); };
    const LayoutOutcome cuda = TrainOnLayout(options, run, source);
    EXPECT_EQ(cuda.graphs.launched > 0, graphs);
    EXPECT_EQ(cuda.losses, cpu.losses);
    EXPECT_EQ(cuda.norms, cpu.norms);
    EXPECT_EQ(cuda.evaluation, cpu.evaluation);
    EXPECT_TRUE(cuda.state == cpu.state);
  }

  FakeNccl nccl_;
  CountingSource source_;
};

TEST_F(NcclPlacementTest, EightRanksThatOverlapTrainAsOnTheCpu) {
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.sequence_parallel = layout.overlap = true;
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kWeights}) {
    layout.sharding = sharding;
    ExpectSameAsOnTheCpu(SmallLlama(), layout);
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

TEST_F(NcclPlacementTest, GridsOfTensorParallelRanksTrainAsOnTheCpu) {
  Layout square;
  square.tensor = 4;
  square.tensor_side = square.micro_batch_size = 2;
  Layout squares = square;
  squares.tensor = 8;
  squares.tensor_depth = 2;
  squares.micro_batch_size = 4;
  Layout cube = squares;
  cube.tensor_cube = true;
  for (const Layout& layout : {square, squares, cube}) ExpectSameAsOnTheCpu(SmallGpt2(), layout);
  ExpectSameAsOnTheCpu(SmallLlama(), cube);
}

TEST_F(NcclPlacementTest, ShardsSentAsIntegersTrainAsOnTheCpu) {
  Layout layout;
  layout.data = 4;
  layout.hosts = 2;
  layout.sharding = DataSharding::kWeights;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
    options.model.transformer.dtype = dtype;
    options.data_parallel.quantized_weights = options.data_parallel.quantized_gradients = true;
    for (const bool overlap : {false, true}) {
      layout.overlap = overlap;
      ExpectSameAsOnTheCpu(options, layout, source_, /*graphs=*/false);
    }
  }
}

TEST_F(NcclPlacementTest, ForwardBesideTensorParallelMessagesTrainsAsOnTheCpu) {
  Layout layout;
  layout.tensor = 4;
  layout.tp_comm_overlap = true;
  for (const bool rows : {false, true}) {
    layout.sequence_parallel = rows;
    ExpectSameAsOnTheCpu(SmallGpt2(), layout);
  }
}

// The largest magnitudes of all rows are found while rows are on their way.
TEST_F(NcclPlacementTest, Float8BesideTensorParallelMessagesTrainsAsOnTheCpuAndAsInTurn) {
  for (const Float8Recipe recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kDelayed, Float8Recipe::kBlockwise}) {
    for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
      TrainerOptions options = TinyRun(model, OptimizerOptions::kAdamW);
      options.model.transformer.dtype = DType::kBFloat16;
      options.model.transformer.ffn_hidden_size = 64;
      options.model.transformer.float8.enabled = true;
      options.model.transformer.float8.recipe = recipe;
      for (const bool rows : {false, true}) {
        LayoutRun run;
        run.layout.tensor = 2;
        run.layout.sequence_parallel = rows;
        run.steps = kSteps;
        const LayoutOutcome in_turn = TrainOnLayout(options, run, source_);
        run.layout.tp_comm_overlap = true;
        const LayoutOutcome beside = TrainOnLayout(options, run, source_);
        EXPECT_EQ(beside.losses, in_turn.losses);
        EXPECT_EQ(beside.norms, in_turn.norms);
        EXPECT_TRUE(beside.state == in_turn.state);
        ExpectSameAsOnTheCpu(options, run.layout, source_, /*graphs=*/true);
      }
    }
  }
}

// Largest magnitudes go among the messages of latents.
TEST_F(NcclPlacementTest, LatentAttentionInFloat8TrainsAsOnTheCpu) {
  TrainerOptions options = TinyRun(SmallWideLatent(), OptimizerOptions::kAdamW);
  options.model.transformer.dtype = DType::kBFloat16;
  options.model.transformer.ffn_hidden_size = 64;
  options.model.transformer.float8.enabled = true;
  Layout layout;
  layout.tensor = layout.context = 2;
  for (const bool rows : {false, true}) {
    layout.sequence_parallel = rows;
    ExpectSameAsOnTheCpu(options, layout, source_, /*graphs=*/true);
  }
}

// Messages of a pass are part of its graph.
TEST_F(NcclPlacementTest, RanksWithGraphsTrainAsOnTheCpu) {
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  for (const bool rows : {false, true}) {
    layout.sequence_parallel = rows;
    ExpectSameWithGraphs(SmallLlama(), layout);
    ExpectSameWithGraphs(SmallGpt2(), layout);
    ExpectSameWithGraphs(SmallLatent(), layout);
  }
  Layout wide;
  wide.tensor = 4;
  wide.tp_comm_overlap = true;
  for (const bool rows : {false, true}) {
    wide.sequence_parallel = rows;
    ExpectSameWithGraphs(SmallGpt2(), wide);
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

// What a rank knows of the other ranks' tokens changes from micro-batch to micro-batch.
TEST_F(NcclPlacementTest, ContextParallelRanksWithGraphsTrainAsOnTheCpu) {
  const CountingSource documents(/*documents=*/true);
  Layout layout;
  layout.context = layout.pipeline = 2;
  for (const ContextParallel form :
       {ContextParallel::kRing, ContextParallel::kGather, ContextParallel::kAllToAll}) {
    layout.context_parallel = form;
    ExpectSameAsOnTheCpu(SmallLlama(), layout, documents, /*graphs=*/true);
  }
  Layout teams;
  teams.context = 4;
  teams.context_parallel = ContextParallel::kHierarchical;
  teams.context_team_size = 2;
  ExpectSameAsOnTheCpu(SmallGpt2(), teams, documents, /*graphs=*/true);
  Layout rows;
  rows.tensor = rows.context = rows.data = 2;
  rows.sequence_parallel = true;
  ExpectSameAsOnTheCpu(SmallGpt2(), rows, documents, /*graphs=*/true);
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

TEST_F(NcclPlacementTest, ContextParallelRanksWithSamplesOfAnyLengthAndGraphsTrainAsOnTheCpu) {
  constexpr int kMoreSteps = 8;  // so that sizes come again
  Layout layout;
  layout.context = 2;
  ExpectSameAsOnTheCpu(SmallBert(), layout, PairSource(), /*graphs=*/true, kMoreSteps);
  ExpectSameAsOnTheCpu(SmallMegatronT5(), layout, GapSource(), /*graphs=*/true, kMoreSteps);
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

// Rows travel to experts and back in the graphs, also beside a shared expert.
TEST_F(NcclPlacementTest, ExpertParallelRanksWithGraphsTrainAsOnTheCpu) {
  Layout samples, rows, parts;
  samples.data = samples.expert = samples.pipeline = 2;
  rows.tensor = rows.data = rows.expert = 2;
  rows.sequence_parallel = true;
  parts.context = parts.data = parts.expert = parts.expert_tensor = 2;
  for (ModelOptions model : {SmallMixtral(), SmallDeepSeek()}) {
    model.transformer.moe.capacity_factor = 1;
    model.transformer.moe.pad_to_capacity = true;
    for (const Layout& layout : {samples, rows, parts}) ExpectSameWithGraphs(model, layout);
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

// Half of the experts compute while the rows of the others travel, in graphs, too.
TEST_F(NcclPlacementTest, ExpertsThatGetTheirRowsInPartsTrainAsOnTheCpu) {
  Layout samples, parts;
  samples.data = samples.expert = samples.pipeline = 2;
  parts.context = parts.data = parts.expert = parts.expert_tensor = 2;
  TrainerOptions options = TinyRun(SmallMixtral(), OptimizerOptions::kAdamW);
  MoeOptions& moe = options.model.transformer.moe;
  moe.dispatch_in_parts = true;
  TrainerOptions in_float8 = options, again = options, padded = options;
  in_float8.model.transformer.dtype = DType::kBFloat16;
  in_float8.model.transformer.ffn_hidden_size = 64;
  in_float8.model.transformer.moe.ffn_hidden_size = 64;
  in_float8.model.transformer.float8.enabled = true;
  again.model.transformer.recompute.mlp = true;
  padded.model.transformer.moe.pad_to_capacity = true;
  for (const Layout& layout : {samples, parts}) {
    for (const TrainerOptions& run : {options, in_float8, again})
      ExpectSameAsOnTheCpu(run, layout, source_, /*graphs=*/false);
    ExpectSameAsOnTheCpu(padded, layout, source_, /*graphs=*/true);
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

void TrainWithGraphsOverTheHost(int Layout::*ranks) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  options.cuda_graphs.enabled = true;
  LayoutRun run;
  run.device = DeviceType::kCuda;
  run.layout.*ranks = 2;
  if (ranks == &Layout::expert) {
    run.layout.data = 2;
    options.model = SmallMixtral();
    options.model.transformer.moe.pad_to_capacity = true;
  }
  TrainOnLayout(options, run, CountingSource());
}

TEST_F(NcclPlacementTest, GraphsRefuseMessagesOfTheHost) {
  EXPECT_NONFATAL_FAILURE(TrainWithGraphsOverTheHost(&Layout::tensor), "only NCCL's are captured");
  EXPECT_NONFATAL_FAILURE(TrainWithGraphsOverTheHost(&Layout::context), "only NCCL's are captured");
  EXPECT_NONFATAL_FAILURE(TrainWithGraphsOverTheHost(&Layout::expert), "only NCCL's are captured");
}

TEST_F(NcclPlacementTest, CommunicatorsHaveTheNamesOfTheirGroups) {
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  ExpectSameAsOnTheCpu(SmallGpt2(), layout);
  // The first pipeline stage has ranks 0 to 3.
  EXPECT_THAT(nccl_.Names(2), IsSupersetOf({"world", "tp-1", "dp-0", "pp-2"}));
  EXPECT_THAT(nccl_.Names(7), IsSupersetOf({"world", "tp-3", "dp-3", "pp-3"}));
}

TEST_F(NcclPlacementTest, OptimizerInstancesTrainAsOnTheCpu) {
  Layout layout;
  layout.data = 4;
  layout.optimizer_instances = 2;
  layout.overlap = true;
  for (const DataSharding sharding : {DataSharding::kStates, DataSharding::kWeights}) {
    for (const bool shares_states : {false, true}) {
      layout.sharding = sharding;
      layout.shards_states_over_instances = shares_states;
      ExpectSameAsOnTheCpu(SmallLlama(), layout);
    }
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

TEST_F(NcclPlacementTest, SecondaryShardsTrainAsOnTheCpu) {
  Layout layout;
  layout.data = 4;
  layout.sharding = DataSharding::kWeights;
  layout.hosts = 2;
  for (const bool overlap : {false, true}) {
    layout.overlap = overlap;
    ExpectSameAsOnTheCpu(SmallLlama(), layout);
  }
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

TEST_F(NcclPlacementTest, IslandsTrainAsOnTheCpu) {
  constexpr int kMoreSteps = 4;
  Layout layout;
  layout.data = 4;
  layout.optimizer_instances = 2;
  layout.sharding = DataSharding::kStates;
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  options.outer = {2, 0.7, 0.9, true};
  ExpectSameAsOnTheCpu(options, layout, source_, /*graphs=*/false, kMoreSteps);
  EXPECT_EQ(nccl_.counts().aborted, 0);
}

TEST_F(NcclPlacementTest, ContextParallelRanksTrainAsOnTheCpu) {
  Layout layout;
  layout.context = layout.data = 2;
  layout.sharding = DataSharding::kStates;
  layout.overlap = true;
  // Two of four heads are a rank's share, so an all-to-all exchanges halves of it.
  for (const ContextParallel kind :
       {ContextParallel::kRing, ContextParallel::kAllToAll, ContextParallel::kGather}) {
    layout.context_parallel = kind;
    ExpectSameAsOnTheCpu(SmallGpt2(), layout);
  }
  layout.context_parallel = ContextParallel::kHierarchical;
  layout.context = 4;
  layout.context_team_size = 2;
  ExpectSameAsOnTheCpu(SmallGpt2(), layout);
}

}  // namespace
}  // namespace megatron
