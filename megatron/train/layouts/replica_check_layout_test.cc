// Tests that ranks find the same weights on their replicas on every layout, after every step.
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

LayoutOutcome Train(TrainerOptions run, const Layout& layout, int64_t interval) {
  run.replica_check_interval = interval;
  LayoutRun how;
  how.layout = layout;
  how.steps = 3;
  how.evaluate = true;
  if (run.model.kind == ModelKind::kBert) return TrainOnLayout(run, how, PairSource());
  return TrainOnLayout(run, how, CountingSource());
}

// TrainOnLayout fails the test where a rank finds a difference.
void ExpectNothingIsFound(const TrainerOptions& run, const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectSameCurve(Train(run, layout, 1), Train(run, layout, 0));
  }
}

TEST(ReplicaCheckLayoutTest, DenseModels) {
  std::vector<Layout> layouts(9);
  layouts[0].data = 4;
  layouts[1].data = layouts[1].context = 2;
  layouts[1].sharding = DataSharding::kStates;
  layouts[1].overlap = true;
  layouts[2].data = layouts[2].tensor = layouts[2].pipeline = 2;
  layouts[2].sequence_parallel = true;
  layouts[2].sharding = DataSharding::kGradients;
  layouts[3].data = layouts[3].tensor = layouts[3].pipeline = 2;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[4].data = 4;
  layouts[4].optimizer_instances = 2;
  layouts[4].sharding = DataSharding::kWeights;
  layouts[5].tensor = 4;  // ranks that share a group of heads
  layouts[6].tensor = 4;
  layouts[6].tensor_side = layouts[6].data = layouts[6].micro_batch_size = 2;
  for (int i = 7; i < 9; ++i) {
    layouts[i].tensor = 8;
    layouts[i].tensor_side = layouts[i].tensor_depth = 2;
    layouts[i].micro_batch_size = 4;
  }
  layouts[8].tensor_cube = true;
  TrainerOptions bf16 = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  bf16.model.transformer.dtype = DType::kBFloat16;
  for (const TrainerOptions& run : {TinyRun(SmallGpt2(), OptimizerOptions::kAdamW), bf16})
    ExpectNothingIsFound(run, layouts);
}

TEST(ReplicaCheckLayoutTest, Experts) {
  std::vector<Layout> layouts(2);
  layouts[0].data = 4;
  layouts[0].expert = 2;
  layouts[1].data = layouts[1].tensor = layouts[1].expert_tensor = 2;
  layouts[1].sharding = DataSharding::kStates;
  ExpectNothingIsFound(TinyRun(SmallMixtral(), OptimizerOptions::kAdamW), layouts);
}

// What becomes of an element here depends on the elements around it, of which tensor-parallel ranks
// have their own parts. BERT's head of sequences is whole on all of them in any case.
TEST(ReplicaCheckLayoutTest, CompressedGradients) {
  std::vector<Layout> layouts(4);
  for (Layout& layout : layouts) layout.tensor = layout.data = 2;
  layouts[1].sharding = DataSharding::kStates;
  layouts[1].overlap = true;
  layouts[2].sequence_parallel = true;
  layouts[3].data = 4;
  layouts[3].optimizer_instances = 2;
  layouts[3].sharding = DataSharding::kWeights;
  for (const ModelOptions& model : {SmallGpt2(), SmallBert()}) {
    TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
    GradientCompressionOptions& compression = run.data_parallel.compression;
    compression.density = compression.max_density = 0.1;
    for (const CompressionType type : {CompressionType::kInt8, CompressionType::kTopK,
                                       CompressionType::kThreshold, CompressionType::kPowerSgd}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type));
      compression.type = type;
      ExpectNothingIsFound(run, layouts);
    }
  }
}

TEST(ReplicaCheckLayoutTest, QuantizedWeightsAndGradients) {
  std::vector<Layout> layouts(2);
  for (Layout& layout : layouts) {
    layout.tensor = layout.data = 2;
    layout.sharding = DataSharding::kWeights;
  }
  layouts[1].sequence_parallel = true;
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  for (const bool weights : {false, true}) {
    SCOPED_TRACE(testing::Message() << weights);
    run.data_parallel.quantized_weights = weights;
    run.data_parallel.quantized_gradients = !weights;
    ExpectNothingIsFound(run, layouts);
  }
}

// With a delay the sums of step 2 are applied after step 3.
TEST(ReplicaCheckLayoutTest, OuterGradientsInCodes) {
  std::vector<Layout> layouts(4);
  for (Layout& layout : layouts) layout.tensor = layout.data = layout.optimizer_instances = 2;
  layouts[1].sequence_parallel = true;
  layouts[2].data = 4;
  layouts[2].sharding = DataSharding::kStates;
  layouts[3].tensor = 4;  // ranks that share a group of heads
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.outer.sync_every = 2;
  for (const OuterGradientType type : {OuterGradientType::kInt8, OuterGradientType::kE3M0}) {
    for (const int64_t delay : {0, 1}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type) << ", delay " << delay);
      run.outer.gradient_type = type;
      run.outer.sync_delay = delay;
      ExpectNothingIsFound(run, layouts);
    }
  }
}

}  // namespace
}  // namespace megatron
