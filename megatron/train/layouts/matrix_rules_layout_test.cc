// Tests that rules for whole matrices, Muon and LAMB, train on every layout what they train on one
// rank: the same curve within rounding, and the same bits for every sharding.

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;
// Newton-Schulz makes the rounding errors of small singular values larger, by up to 500.
constexpr double kTolerance = 2e-5;

TrainerOptions MuonRun(const ModelOptions& model, MuonTensorMode mode) {
  TrainerOptions run = TinyRun(model, OptimizerOptions::kMuon);
  run.optimizer.muon.tensor_mode = mode;
  run.optimizer.muon.nesterov = true;
  run.optimizer.muon.extra_scale_factor = 0.2;
  run.optimizer.muon.product_dtype = DType::kFloat32;
  return run;
}

TrainerOptions LambRun(const ModelOptions& model) {
  TrainerOptions run = TinyRun(model, OptimizerOptions::kLamb);
  run.schedule.max_lr = 1e-2;
  return run;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps = kSteps) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = true;
  return TrainOnLayout(run, how, CountingSource());
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * kTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kTolerance * want.evaluation);
}

std::vector<Layout> DenseLayouts() {
  std::vector<Layout> layouts(6);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].tensor = 4;  // ranks that share groups of heads, if there are two
  layouts[2].data = 4;
  layouts[2].sharding = DataSharding::kStates;
  layouts[3].data = layouts[3].tensor = layouts[3].pipeline = 2;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[4].pipeline = 2;
  layouts[4].chunks = 2;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kGradients;
  layouts[5].context = layouts[5].tensor = 2;
  return layouts;
}

TEST(MatrixRulesLayoutTest, MuonTrainsOnEveryLayoutWhatOneRankTrains) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const LayoutOutcome want = Train(MuonRun(model, MuonTensorMode::kDuplicated), Layout());
    for (const MuonTensorMode mode : {MuonTensorMode::kDuplicated, MuonTensorMode::kDistributed}) {
      for (const Layout& layout : DenseLayouts()) {
        SCOPED_TRACE(absl::StrCat(ToString(layout), " mode ", static_cast<int>(mode)));
        ExpectTheSame(Train(MuonRun(model, mode), layout), want);
      }
    }
  }
}

TEST(MatrixRulesLayoutTest, LambTrainsOnEveryLayoutWhatOneRankTrains) {
  const TrainerOptions run = LambRun(SmallLlama());
  const LayoutOutcome want = Train(run, Layout());
  for (const Layout& layout : DenseLayouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectTheSame(Train(run, layout), want);
  }
}

std::vector<Layout> ExpertLayouts() {
  std::vector<Layout> layouts(3);
  layouts[0].data = layouts[0].expert = 2;
  layouts[0].sharding = DataSharding::kStates;
  layouts[1].tensor = layouts[1].expert_tensor = 2;
  layouts[2].data = 2;
  layouts[2].expert_tensor = 2;  // ranks that share experts and no other weights
  return layouts;
}

void PlaceExperts(TrainerOptions* run) {
  run->model.transformer.moe.layers = {false, true, false, true};
  run->model.transformer.init_std = 0.08f;
}

TEST(MatrixRulesLayoutTest, ExpertsAreMatricesOnTheRanksThatHoldThem) {
  for (const bool is_muon : {true, false}) {
    TrainerOptions run =
        is_muon ? MuonRun(SmallMixtral(), MuonTensorMode::kDistributed) : LambRun(SmallMixtral());
    PlaceExperts(&run);
    const LayoutOutcome want = Train(run, Layout());
    for (const Layout& layout : ExpertLayouts()) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSame(Train(run, layout), want);
    }
  }
}

// Returns the norm of the difference of two fp32 tensors of the same shape.
double Distance(const WholeTensor& a, const WholeTensor& b) {
  EXPECT_EQ(a.dtype, DType::kFloat32);
  EXPECT_EQ(a.bytes.size(), b.bytes.size());
  const auto* const x = reinterpret_cast<const float*>(a.bytes.data());
  const auto* const y = reinterpret_cast<const float*>(b.bytes.data());
  double squares = 0;
  for (int64_t i = 0; i < a.shape.numel(); ++i) squares += std::pow(double{x[i]} - y[i], 2);
  return std::sqrt(squares);
}

// Biases are zero before the first step, and have a ratio from the second on. What ratios change
// is small beside the loss, so the biases themselves are compared.
TEST(MatrixRulesLayoutTest, LambsStepOfExpertsBiasesIsTheSameOnEveryLayout) {
  TrainerOptions run = LambRun(SmallMixtral());
  PlaceExperts(&run);
  run.model.transformer.linear_bias = true;
  run.schedule.max_lr = 3e-2;
  const LayoutOutcome want = Train(run, Layout());
  for (const Layout& layout : ExpertLayouts()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(run, layout);
    ExpectTheSame(got, want);
    int biases = 0;
    for (const auto& [name, tensor] : want.state) {
      if (!absl::StartsWith(name, "decoder.layers.") || !absl::EndsWith(name, ".bias") ||
          !absl::StrContains(name, ".experts.")) {
        continue;
      }
      SCOPED_TRACE(name);
      ++biases;
      WholeTensor zeros = tensor;
      zeros.bytes.assign(zeros.bytes.size(), '\0');
      const double norm = Distance(tensor, zeros);
      EXPECT_GT(norm, 0);
      EXPECT_LT(Distance(got.state.at(name), tensor), 1e-4 * norm);
    }
    EXPECT_EQ(biases, 4);
  }
}

// Blocks of tensor-parallel ranks are no matrices then, but all else is the same.
TEST(MatrixRulesLayoutTest, BlockwiseMuonDependsOnTheTensorParallelSizeAlone) {
  const TrainerOptions run = MuonRun(SmallLlama(), MuonTensorMode::kBlockwise);
  Layout two;
  two.tensor = 2;
  const LayoutOutcome want = Train(run, two), alone = Train(run, Layout());
  Layout more = two;
  more.data = more.pipeline = 2;
  more.sharding = DataSharding::kWeights;
  ExpectTheSame(Train(run, more), want);
  EXPECT_GT(std::abs(want.losses.back() - alone.losses.back()),
            10 * kTolerance * alone.losses.back());
}

TEST(MatrixRulesLayoutTest, ShardingAndOverlapDoNotChangeABit) {
  for (const bool is_muon : {true, false}) {
    for (const bool bf16 : {false, true}) {
      TrainerOptions run =
          is_muon ? MuonRun(SmallLlama(), MuonTensorMode::kDistributed) : LambRun(SmallLlama());
      if (bf16) run.model.transformer.dtype = DType::kBFloat16;
      run.optimizer.muon.product_dtype = bf16 ? DType::kBFloat16 : DType::kFloat32;
      Layout layout;
      layout.data = 8;  // one micro-batch a step, so that sums have one order
      const LayoutOutcome want = Train(run, layout);
      for (const DataSharding sharding :
           {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
        for (const int instances : {1, 2}) {
          layout.sharding = sharding;
          layout.overlap = sharding != DataSharding::kStates;
          layout.optimizer_instances = instances;
          layout.shards_states_over_instances = instances > 1;
          SCOPED_TRACE(absl::StrCat(ToString(layout), bf16 ? " bf16" : " fp32"));
          const LayoutOutcome got = Train(run, layout);
          if (instances > 1) {  // sums have another order
            for (size_t i = 0; i < got.losses.size(); ++i)
              EXPECT_NEAR(got.losses[i], want.losses[i],
                          (bf16 ? 2e-2 : kTolerance) * want.losses[i]);
            continue;
          }
          EXPECT_EQ(got.losses, want.losses);
          EXPECT_TRUE(got.state == want.state);
        }
      }
    }
  }
}

TEST(MatrixRulesLayoutTest, ACheckpointContinuesOnOtherRanks) {
  const TrainerOptions run = MuonRun(SmallLlama(), MuonTensorMode::kDistributed);
  const LayoutOutcome want = Train(run, Layout(), /*steps=*/6);
  LayoutRun first;
  first.layout.tensor = first.layout.data = 2;
  first.layout.sharding = DataSharding::kWeights;
  first.steps = 3;
  first.save = absl::StrCat(::testing::TempDir(), "/matrix_rules");
  const LayoutOutcome before = TrainOnLayout(run, first, CountingSource());
  LayoutRun second;
  second.layout.pipeline = 2;
  second.layout.tensor = 4;
  second.steps = 3;
  second.load = first.save;
  const LayoutOutcome after = TrainOnLayout(run, second, CountingSource());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(before.losses[i], want.losses[i], kTolerance * want.losses[i]) << i;
    EXPECT_NEAR(after.losses[i], want.losses[3 + i], kTolerance * want.losses[3 + i]) << i;
  }
  EXPECT_TRUE(PosixFileSystem().RemoveTree(first.save).ok());
}

// A matrix takes 4 bytes an element beside its weights, and another weight 8.
TEST(MatrixRulesLayoutTest, MuonKeepsHalfTheStatesOfMatrices) {
  const LayoutOutcome outcome = Train(MuonRun(SmallLlama(), MuonTensorMode::kBlockwise), Layout());
  EXPECT_EQ(outcome.memory.at("exp_avg"), outcome.memory.at("exp_avg_sq"));
  EXPECT_LT(outcome.memory.at("exp_avg") + outcome.memory.at("momentum_buffer"),
            1.01 * outcome.memory.at("weights"));
}

}  // namespace
}  // namespace megatron
