// T5 trained on layouts: an encoder and a decoder, cut where the layout says, on any number of
// ranks.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

constexpr int kSteps = 10;

// A T5 like Megatron's.
ModelOptions SmallT5() {
  ModelOptions options = SmallGpt2();
  options.kind = ModelKind::kT5;
  options.num_encoder_layers = 4;
  options.output_bias = true;
  return options;
}

// A model like T5 1.1: positions are relative, nothing has a bias, the MLP is gated.
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
  return TrainSentences(model, layout, kSteps, GapSource());
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ExpectSameTraining(got, want, [](const std::string& name) {
    // The gradient of the keys' biases is nothing but rounding error.
    const bool of_keys =
        absl::EndsWith(name, "linear_qkv.bias") || absl::EndsWith(name, "linear_kv.bias");
    return of_keys ? Comparison::kNone : Comparison::kRelative;
  });
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
  Layout ring;  // tokens of both sides are divided
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
