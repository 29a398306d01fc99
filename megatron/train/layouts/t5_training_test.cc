// T5 trained on layouts: an encoder and a decoder, cut where the layout says, on any number of
// ranks.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/models/gpt_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 10;
constexpr double kLossTolerance = 2e-6;
constexpr double kWeightTolerance = 2e-6;  // relative L2 of a tensor

// As Megatron's.
ModelOptions SmallT5() {
  ModelOptions options = SmallGpt2();
  options.num_encoder_layers = 4;
  options.output_bias = true;
  return options;
}

// As T5 1.1: positions are relative, nothing has a bias, the MLP is gated.
ModelOptions SmallRelativeT5() {
  ModelOptions options = SmallT5();
  options.learned_positions = options.tied_embeddings = options.output_bias = false;
  TransformerOptions& transformer = options.transformer;
  transformer.relative_positions = {8, 12};
  transformer.norm.kind = ops::Norm::kRmsNorm;
  transformer.linear_bias = transformer.qkv_bias = false;
  transformer.gated = true;
  transformer.gate = ops::Activation::kGeluTanh;
  transformer.softmax_scale = 1;
  return options;
}

LayoutOutcome Train(const ModelOptions& model, const Layout& layout) {
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.model.layer_recompute = {LayerRecompute::kBlock, 1};
  return TrainOnLayout(run, how, GapSource());
}

double Distance(const WholeTensor& a, const WholeTensor& b) {
  const auto *x = reinterpret_cast<const float*>(a.bytes.data()),
             *y = reinterpret_cast<const float*>(b.bytes.data());
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < b.shape.numel(); ++i) {
    difference += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    norm += double{y[i]} * y[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// The gradient of keys' biases is nothing but rounding.
bool IsCompared(const std::string& name) {
  return !absl::StartsWith(name, "optimizer.") && !absl::EndsWith(name, "linear_qkv.bias") &&
         !absl::EndsWith(name, "linear_kv.bias");
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kLossTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kLossTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kLossTolerance * want.evaluation);
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state) {
    if (!IsCompared(name)) continue;
    ASSERT_EQ(got.state.at(name).shape, tensor.shape) << name;
    EXPECT_LE(Distance(got.state.at(name), tensor), kWeightTolerance) << name;
  }
}

Layout Pipeline(int stages, ScheduleKind schedule, int chunks = 1) {
  Layout layout;
  layout.pipeline = stages;
  layout.schedule = schedule;
  layout.chunks = chunks;
  return layout;
}

std::vector<Layout> Layouts() {
  constexpr ScheduleKind k1F1B = ScheduleKind::kOneForwardOneBackward;
  Layout many = Pipeline(2, k1F1B);  // the encoder on one stage, the decoder on the other
  many.tensor = many.data = 2;
  many.sharding = DataSharding::kStates;
  Layout sequence = many;
  sequence.sequence_parallel = true;
  sequence.micro_batch_size = 2;
  Layout wide;
  wide.tensor = 4;
  wide.sequence_parallel = true;
  wide.micro_batch_size = 4;
  Layout deep = Pipeline(4, k1F1B);
  deep.data = 2;
  deep.sharding = DataSharding::kWeights;
  Layout uneven = Pipeline(3, k1F1B);  // one stage has layers of both
  uneven.layers = {3, 3, 2};
  Layout alone;
  alone.micro_batch_size = 8;
  Layout ring;  // tokens of both sides dealt out
  ring.context = 2;
  ring.micro_batch_size = 2;
  Layout heads = ring;
  heads.tensor = 2;
  heads.context_parallel = ContextParallel::kAllToAll;
  Layout gather;
  gather.context = 4;
  gather.micro_batch_size = 8;
  gather.context_parallel = ContextParallel::kGather;
  Layout teams = gather;
  teams.context_parallel = ContextParallel::kHierarchical;
  teams.context_team_size = 2;
  Layout every = Pipeline(2, k1F1B);
  every.tensor = every.context = 2;
  every.sequence_parallel = true;
  every.sharding = DataSharding::kStates;
  Layout shards = Pipeline(2, ScheduleKind::kZeroBubbleH1);
  shards.data = shards.context = 2;
  shards.sharding = DataSharding::kWeights;
  shards.context_parallel = ContextParallel::kAllToAll;
  return {alone,
          ring,
          heads,
          gather,
          teams,
          every,
          shards,
          many,
          sequence,
          wide,
          deep,
          uneven,
          Pipeline(2, k1F1B, 2),
          Pipeline(2, ScheduleKind::kZeroBubbleH1),
          Pipeline(2, ScheduleKind::kZeroBubbleV, 2)};
}

TEST(T5TrainingTest, EveryLayoutTrainsWhatOneRankTrains) {
  for (const ModelOptions& model : {SmallT5(), SmallRelativeT5()}) {
    SCOPED_TRACE(model.learned_positions ? "Megatron's" : "relative");
    const LayoutOutcome alone = Train(model, Layout());
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSame(Train(model, layout), alone);
    }
  }
}

}  // namespace
}  // namespace megatron
