// Trains on squares of tensor-parallel ranks, and compares with one rank.

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr double kLossTolerance = 2e-6, kSgdTolerance = 2e-6;

Layout Square(int side) {
  Layout layout;
  layout.tensor = side * side;
  layout.tensor_side = side;
  layout.micro_batch_size = side;
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

TEST(TensorGridTest, SquaresTrainAsOneRank) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const LayoutOutcome one = Train(model, OptimizerOptions::kSgd, Layout());
    Layout pipeline = Square(2);
    pipeline.pipeline = 2;
    Layout zero = Square(2);
    zero.data = 2;
    zero.sharding = DataSharding::kWeights;
    for (const Layout& layout : {Square(2), pipeline, zero}) {
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome square = Train(model, OptimizerOptions::kSgd, layout);
      ExpectSame(square, one, kSgdTolerance);
      EXPECT_NEAR(square.evaluation, one.evaluation, kLossTolerance * one.evaluation);
    }
  }
}

// Each round's product is rounded to bf16, which has 8 bits.
TEST(TensorGridTest, SquaresTrainInBf16AsOneRankWithinItsRounding) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.model.transformer.dtype = DType::kBFloat16;
  LayoutRun alone, square;
  alone.steps = square.steps = 5;
  square.layout = Square(2);
  const LayoutOutcome want = TrainOnLayout(run, alone, CountingSource()),
                      got = TrainOnLayout(run, square, CountingSource());
  for (size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], 0.01 * want.losses[i]) << "step " << i;
}

TEST(TensorGridTest, DeferredGradientsAndRecomputationChangeNothing) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  LayoutRun plain;
  plain.steps = 3;
  plain.layout = Square(2);
  plain.layout.pipeline = 2;
  const LayoutOutcome want = TrainOnLayout(run, plain, CountingSource());
  LayoutRun deferred = plain;
  deferred.layout.schedule = ScheduleKind::kZeroBubbleH1;
  EXPECT_TRUE(TrainOnLayout(run, deferred, CountingSource()).state == want.state);
  run.model.layer_recompute = {LayerRecompute::kUniform, 1};
  EXPECT_TRUE(TrainOnLayout(run, plain, CountingSource()).state == want.state);
}

TEST(TensorGridTest, SquaresOfThreeRowsTrainAsOneRank) {
  ModelOptions model = SmallGpt2();
  TransformerOptions& transformer = model.transformer;
  transformer.num_attention_heads = transformer.num_query_groups = 6;
  transformer.hidden_size = transformer.num_attention_heads * transformer.kv_channels;
  transformer.ffn_hidden_size = 2 * transformer.hidden_size;
  model.padded_vocab_size = 66;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  LayoutRun alone, square;
  alone.steps = square.steps = 3;
  square.layout = Square(3);
  run.batch_size.global_batch_size = 6;
  alone.layout.micro_batch_size = square.layout.micro_batch_size = 6;
  ExpectSame(TrainOnLayout(run, square, CountingSource()),
             TrainOnLayout(run, alone, CountingSource()), kSgdTolerance);
}

// A checkpoint of a square, of ranks that cut along one dim, and of one rank hold the same bits,
// and the run goes on from each on the next.
TEST(TensorGridTest, CheckpointsOfSquaresLoadAnywhereAndGoOn) {
  const std::string root = absl::StrCat(::testing::TempDir(), "/tensor_grid");
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
    LayoutRun whole;
    whole.steps = 8;
    const LayoutOutcome want = TrainOnLayout(run, whole, CountingSource());
    Layout tensor, pipeline = Square(2);
    tensor.tensor = tensor.data = 2;
    tensor.sharding = DataSharding::kStates;
    pipeline.pipeline = 2;
    const Layout layouts[] = {Square(2), tensor, pipeline, Layout()};
    std::map<std::string, WholeTensor> last;
    std::vector<double> losses;
    for (int part = 0; part < 4; ++part) {
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
    for (int part = 0; part < 4; ++part)
      EXPECT_TRUE(PosixFileSystem().RemoveTree(absl::StrCat(root, part)).ok());
  }
}

// The bytes that a rank receives in broadcasts and sums of blocks. A counter has a broadcast's
// block once, at its root; the ranks of a row or column are the roots in turn, so that each
// receives the blocks of the others.
double BlockBytes(int layers, const ModelOptions& model) {
  LayoutRun how;
  how.layout = Square(2);
  how.steps = 1;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.model.transformer.num_layers = layers;
  const LayoutOutcome outcome = TrainOnLayout(run, how, CountingSource());
  double bytes = 0;
  for (const char* group : {"tp-row", "tp-column"}) {
    bytes += (how.layout.tensor_side - 1) *
             static_cast<double>(outcome.sent->Of(group, Collective::kBroadcast));
    bytes += static_cast<double>(outcome.sent->Of(group, Collective::kReduceScatter));
  }
  return bytes;
}

TEST(TensorGridTest, LayersSendThePlannersBytes) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TransformerOptions& t = model.transformer;
    const LayerMatrices layer =
        MatricesOf(t.hidden_size, t.ffn_hidden_size, t.gated, t.num_attention_heads,
                   t.num_query_groups, t.kv_channels);
    // Four micro-batches of two samples. What is in front of the layers and behind them cancels.
    EXPECT_EQ(BlockBytes(3, model) - BlockBytes(1, model),
              2 * 4 * BytesReceivedIn2d(layer, 2, 2 * CountingSource::kLength, 4));
  }
}

// A run that stops and goes on has the bits of one that does not stop.
TEST(TensorGridTest, ResumingChangesNoBit) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/tensor_grid_resumed");
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  LayoutRun whole;
  whole.layout = Square(2);
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

}  // namespace
}  // namespace megatron
