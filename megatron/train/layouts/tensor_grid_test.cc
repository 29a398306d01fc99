// Trains on grids of tensor-parallel ranks, and compares with one rank.

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr double kLossTolerance = 2e-6, kSgdTolerance = 2e-6;
// Each gradient passes through all norms.
constexpr double kPostNormTolerance = 1e-5;

Layout Squares(int side, int depth) {
  Layout layout;
  layout.tensor = side * side * depth;
  layout.tensor_side = side;
  layout.tensor_depth = depth;
  layout.micro_batch_size = side * depth;
  return layout;
}

Layout Square(int side) { return Squares(side, 1); }

Layout Cube(int side) {
  Layout layout = Squares(side, side);
  layout.tensor_cube = true;
  return layout;
}

Layout OnTwoStages(Layout layout) {
  layout.pipeline = 2;
  return layout;
}

Layout WithZero3(Layout layout) {
  layout.data = 2;
  layout.sharding = DataSharding::kWeights;
  return layout;
}

double RelativeDifference(const WholeTensor& got, const WholeTensor& want) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < want.shape.numel(); ++i) {
    float a, b;
    std::memcpy(&a, &got.bytes[i * sizeof(float)], sizeof(float));
    std::memcpy(&b, &want.bytes[i * sizeof(float)], sizeof(float));
    difference += (double{a} - b) * (double{a} - b);
    norm += double{b} * b;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

void ExpectSame(const LayoutOutcome& got, const LayoutOutcome& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kLossTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]) << "step " << i;
  }
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state) {
    ASSERT_TRUE(got.state.count(name)) << name;
    ASSERT_EQ(got.state.at(name).shape, tensor.shape) << name;
    if (name.find("optimizer") == std::string::npos) {
      EXPECT_LT(RelativeDifference(got.state.at(name), tensor), tolerance) << name;
    }
  }
}

LayoutOutcome Train(const ModelOptions& model, OptimizerOptions::Kind optimizer,
                    const Layout& layout) {
  LayoutRun how;
  how.layout = layout;
  how.steps = 10;
  how.evaluate = true;
  return TrainOnLayout(TinyRun(model, optimizer), how, CountingSource());
}

// Compares layouts with one rank of the same global batch.
void ExpectTrainAsOneRank(const std::vector<Layout>& layouts) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const LayoutOutcome one = Train(model, OptimizerOptions::kSgd, Layout());
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome grid = Train(model, OptimizerOptions::kSgd, layout);
      ExpectSame(grid, one, kSgdTolerance);
      EXPECT_NEAR(grid.evaluation, one.evaluation, kLossTolerance * one.evaluation);
    }
  }
}

TEST(TensorGridTest, SquaresTrainAsOneRank) {
  ExpectTrainAsOneRank({Square(2), OnTwoStages(Square(2)), WithZero3(Square(2))});
}

TEST(TensorGridTest, SquaresOnTwoLevelsTrainAsOneRank) {
  ExpectTrainAsOneRank({Squares(2, 2), OnTwoStages(Squares(2, 2)), WithZero3(Squares(2, 2))});
}

TEST(TensorGridTest, CubesTrainAsOneRank) {
  ExpectTrainAsOneRank({Cube(2), OnTwoStages(Cube(2)), WithZero3(Cube(2))});
}

// The two layouts of a cube have other samples, whose documents begin at other tokens.
TEST(TensorGridTest, GridsTrainDocumentsAsOneRank) {
  LayoutRun alone;
  alone.steps = 5;
  const TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource(/*documents=*/true));
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    ExpectSame(TrainOnLayout(run, how, CountingSource(/*documents=*/true)), want, kSgdTolerance);
  }
}

// The norm of the embedding's sum is cut like those of layers, and the head has none.
TEST(TensorGridTest, GridsTrainNormsBehindAdditionsAsOneRank) {
  ModelOptions model = SmallGpt2();
  model.transformer.post_norm = true;
  const TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  LayoutRun alone;
  alone.steps = 3;
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource());
  EXPECT_EQ(want.state.count("embedding.layernorm.weight"), 1u);
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    ExpectSame(TrainOnLayout(run, how, CountingSource()), want, kPostNormTolerance);
  }
}

// Each round's product is rounded to bf16, which has 8 bits.
TEST(TensorGridTest, GridsTrainInBf16AsOneRankWithinItsRounding) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.model.transformer.dtype = DType::kBFloat16;
  LayoutRun alone;
  alone.steps = 5;
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource());
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    const LayoutOutcome got = TrainOnLayout(run, how, CountingSource());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 0.01 * want.losses[i]) << "step " << i;
  }
}

// The first steps overflow, on all ranks alike.
TEST(TensorGridTest, GridsTrainInFp16AsOneRankAndSkipTheSameSteps) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.model.transformer.dtype = DType::kFloat16;
  DynamicLossScaleOptions dynamic;
  dynamic.initial_scale = 1 << 22;
  dynamic.hysteresis = 1;
  const absl::StatusOr<LossScaler> scaler = LossScaler::CreateDynamic(dynamic);
  ASSERT_TRUE(scaler.ok());
  LayoutRun alone;
  alone.steps = 12;
  alone.scaler = &*scaler;
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource());
  EXPECT_FALSE(std::isfinite(want.norms.front()));
  EXPECT_TRUE(std::isfinite(want.norms.back()));
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    const LayoutOutcome got = TrainOnLayout(run, how, CountingSource());
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 0.002 * want.losses[i]) << "step " << i;
      EXPECT_EQ(std::isfinite(got.norms[i]), std::isfinite(want.norms[i])) << "step " << i;
    }
  }
}

// Lion's step is a sign for each element. Where what it is the sign of is nearly 0, rounding turns
// it around.
TEST(TensorGridTest, GridsTrainWithLionAsOneRankButForSignsOfNearlyNothing) {
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kLion);
  LayoutRun alone;
  alone.steps = 5;
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource());
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    const LayoutOutcome got = TrainOnLayout(run, how, CountingSource());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-4 * want.losses[i]) << "step " << i;
    int64_t turned = 0, all = 0;
    for (const auto& [name, tensor] : want.state) {
      if (name.find("optimizer") != std::string::npos) continue;
      const auto value = [](const WholeTensor& whole, int64_t i) {
        float x;
        std::memcpy(&x, &whole.bytes[i * sizeof(float)], sizeof(float));
        return x;
      };
      for (int64_t i = 0; i < tensor.shape.numel(); ++i)
        turned += std::abs(value(got.state.at(name), i) - value(tensor, i)) > 1e-5;
      all += tensor.shape.numel();
    }
    EXPECT_LT(turned, all / 100);
  }
}

TEST(TensorGridTest, DeferredGradientsAndRecomputationChangeNothing) {
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
    LayoutRun plain;
    plain.steps = 3;
    plain.layout = OnTwoStages(layout);
    const LayoutOutcome want = TrainOnLayout(run, plain, CountingSource());
    LayoutRun deferred = plain;
    deferred.layout.schedule = ScheduleKind::kZeroBubbleH1;
    EXPECT_TRUE(TrainOnLayout(run, deferred, CountingSource()).state == want.state);
    run.model.layer_recompute = {LayerRecompute::kUniform, 1};
    EXPECT_TRUE(TrainOnLayout(run, plain, CountingSource()).state == want.state);
  }
}

TEST(TensorGridTest, GridsOfThreeRowsOrLevelsTrainAsOneRank) {
  ModelOptions model = SmallGpt2();
  TransformerOptions& transformer = model.transformer;
  transformer.num_attention_heads = transformer.num_query_groups = 6;
  transformer.hidden_size = transformer.num_attention_heads * transformer.kv_channels;
  transformer.ffn_hidden_size = 2 * transformer.hidden_size;
  model.padded_vocab_size = 66;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.batch_size.global_batch_size = 6;
  LayoutRun alone;
  alone.steps = 3;
  alone.layout.micro_batch_size = 6;
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource());
  for (const Layout& layout : {Square(3), Squares(2, 3)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun how = alone;
    how.layout = layout;
    how.layout.micro_batch_size = 6;
    ExpectSame(TrainOnLayout(run, how, CountingSource()), want, kSgdTolerance);
  }
}

// Trains two steps on each of the layouts, each from the checkpoint of the one before, whose bits
// it has when it has loaded them, and compares the losses with a run on one rank.
void ExpectCheckpointsLoadAnywhereAndGoOn(const std::vector<Layout>& layouts) {
  const std::string root = absl::StrCat(::testing::TempDir(), "/tensor_grid");
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
    LayoutRun whole;
    whole.steps = 2 * static_cast<int>(layouts.size());
    const LayoutOutcome want = TrainOnLayout(run, whole, CountingSource());
    std::map<std::string, WholeTensor> last;
    std::vector<double> losses;
    for (size_t part = 0; part < layouts.size(); ++part) {
      SCOPED_TRACE(ToString(layouts[part]));
      LayoutRun how;
      how.layout = layouts[part];
      if (part > 0) {
        how.load = absl::StrCat(root, part - 1);
        EXPECT_TRUE(TrainOnLayout(run, how, CountingSource()).state == last);
      }
      how.steps = 2;
      how.save = absl::StrCat(root, part);
      LayoutOutcome got = TrainOnLayout(run, how, CountingSource());
      losses.insert(losses.end(), got.losses.begin(), got.losses.end());
      last = std::move(got.state);
    }
    ASSERT_EQ(losses.size(), want.losses.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], want.losses[i], kLossTolerance * want.losses[i]) << "step " << i;
    for (size_t part = 0; part < layouts.size(); ++part)
      EXPECT_TRUE(PosixFileSystem().RemoveTree(absl::StrCat(root, part)).ok());
  }
}

Layout InOneDim() {
  Layout layout;
  layout.tensor = layout.data = 2;
  layout.sharding = DataSharding::kStates;
  return layout;
}

TEST(TensorGridTest, CheckpointsOfSquaresLoadAnywhereAndGoOn) {
  ExpectCheckpointsLoadAnywhereAndGoOn({Square(2), InOneDim(), OnTwoStages(Square(2)), Layout()});
}

TEST(TensorGridTest, CheckpointsOfLevelsAndCubesLoadAnywhereAndGoOn) {
  ExpectCheckpointsLoadAnywhereAndGoOn(
      {Squares(2, 2), InOneDim(), Cube(2), Square(2), OnTwoStages(Cube(2)), Layout()});
}

// What a rank has received in a step.
struct Received {
  double blocks = 0;  // in broadcasts, gathers and sums of blocks
  double levels = 0;  // in sums over levels
};

// A counter has a broadcast's block once, at its root; the ranks of a row or column are the roots
// in turn, so that each receives the blocks of the others. The statistics of norms, which alone are
// gathered over the rows of squares, are left out there.
Received ReceivedOn(const Layout& layout, int layers, const ModelOptions& model) {
  LayoutRun how;
  how.layout = layout;
  how.steps = 1;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.model.transformer.num_layers = layers;
  const LayoutOutcome outcome = TrainOnLayout(run, how, CountingSource());
  Received received;
  for (const char* group : {"tp-row", "tp-column", "tp-depth"}) {
    const auto sent = [&](Collective call) {
      return static_cast<double>(outcome.sent->Of(group, call));
    };
    received.blocks += (layout.tensor_side - 1) * sent(Collective::kBroadcast);
    received.blocks += sent(Collective::kReduceScatter);
    if (layout.tensor_cube) received.blocks += sent(Collective::kAllGather);
  }
  received.levels = static_cast<double>(outcome.sent->Of("tp-depth", Collective::kAllReduce));
  return received;
}

// What is in front of the layers and behind them cancels.
TEST(TensorGridTest, LayersSendThePlannersBytes) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TransformerOptions& t = model.transformer;
    const LayerMatrices layer =
        MatricesOf(t.hidden_size, t.ffn_hidden_size, t.gated, t.num_attention_heads,
                   t.num_query_groups, t.kv_channels);
    for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
      SCOPED_TRACE(ToString(layout));
      const PlanGrid grid = {layout.tensor_side, layout.tensor_depth, layout.tensor_cube};
      const int64_t tokens = layout.micro_batch_size * CountingSource::kLength;
      const double micro_batches = 8.0 / static_cast<double>(layout.micro_batch_size);
      const Received three = ReceivedOn(layout, 3, model), one = ReceivedOn(layout, 1, model);
      double blocks = BytesReceivedOnGrid(layer, grid, tokens, 4);
      // Two norms, and two floats of each token of a rank.
      if (layout.tensor_cube) blocks += 2 * 2 * 4 * static_cast<double>(tokens) / 4;
      EXPECT_EQ(three.blocks - one.blocks, 2 * micro_batches * blocks);
      if (!layout.tensor_cube) {
        EXPECT_EQ(three.levels - one.levels, 2 * BytesOfLevels(layer, grid));
      }
    }
  }
}

// A run that stops and goes on has the bits of one that does not stop.
TEST(TensorGridTest, ResumingChangesNoBit) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/tensor_grid_resumed");
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  for (const Layout& layout : {Square(2), Squares(2, 2), Cube(2)}) {
    SCOPED_TRACE(ToString(layout));
    LayoutRun whole;
    whole.layout = layout;
    whole.steps = 4;
    const LayoutOutcome want = TrainOnLayout(run, whole, CountingSource());
    LayoutRun half = whole;
    half.steps = 2;
    half.save = directory;
    TrainOnLayout(run, half, CountingSource());
    half.load = directory;
    half.save.clear();
    EXPECT_TRUE(TrainOnLayout(run, half, CountingSource()).state == want.state);
    EXPECT_TRUE(PosixFileSystem().RemoveTree(directory).ok());
  }
}

}  // namespace
}  // namespace megatron
