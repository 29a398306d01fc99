// Loads a checkpoint of any layout in any other layout: the bits are the same, and the same run
// continues.

#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

// All layouts of the tiny model on up to 8 ranks.
std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  const std::vector<RankOrder> orders = RankOrder::All();
  for (int tensor : {1, 2, 4}) {
    for (int pipeline : {1, 2, 3, 4}) {
      for (int data : {1, 2, 4, 8}) {
        for (int chunks : {1, 2}) {
          for (int zero : {0, 1, 2, 3}) {
            Layout layout;
            layout.tensor = tensor;
            layout.pipeline = pipeline;
            layout.data = data;
            layout.chunks = chunks;
            layout.sharding = static_cast<DataSharding>(zero);
            layout.overlap = zero % 2 == 1;
            if (zero > 0 && data > 1) layout.optimizer_instances = 1 + (tensor + pipeline) % 2;
            layout.shards_states_over_instances = layout.optimizer_instances > 1 && data > 2;
            if (pipeline == 3) layout.layers = {1, 2, 1};
            // Without experts every order of ranks is accepted.
            layout.order = orders[layouts.size() % orders.size()];
            if (layout.ranks() > 8 || (chunks == 2 && (pipeline != 2 || data > 4))) continue;
            layouts.push_back(layout);
            Layout more = layout;
            more.context = 2;
            if (more.ranks() <= 8) layouts.push_back(more);
            if (pipeline != 2) continue;
            layout.schedule =
                chunks == 2 ? ScheduleKind::kZeroBubbleV : ScheduleKind::kZeroBubbleH1;
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  return layouts;
}

struct Kind {
  std::string name;
  ModelOptions model;
  DType dtype;
  OptimizerOptions::Kind optimizer;
  DType moments = DType::kFloat32;  // those of AdamW
};

// All optimizers but 1-bit Adam, whose errors belong to a layout, each with both models and both
// types of weights; AdamW with narrow moments too.
std::vector<Kind> Kinds() {
  const std::pair<const char*, OptimizerOptions::Kind> optimizers[] = {
      {"AdamW", OptimizerOptions::kAdamW},
      {"SGD", OptimizerOptions::kSgd},
      {"Lion", OptimizerOptions::kLion},
      {"Muon", OptimizerOptions::kMuon},
      {"LAMB", OptimizerOptions::kLamb}};
  EXPECT_EQ(std::size(optimizers) + 3, config::Optimizer::Type_descriptor()->value_count());
  std::vector<Kind> kinds;
  for (const auto& [name, optimizer] : optimizers) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      kinds.push_back(
          {absl::StrCat("GPT-2, ", Name(dtype), ", ", name), SmallGpt2(), dtype, optimizer});
      kinds.push_back(
          {absl::StrCat("Llama, ", Name(dtype), ", ", name), SmallLlama(), dtype, optimizer});
    }
  }
  kinds.push_back({"Windows and sinks, bf16, AdamW", SmallWindowed(), DType::kBFloat16,
                   OptimizerOptions::kAdamW});
  kinds.push_back(
      {"Latent attention, bf16, AdamW", SmallLatent(), DType::kBFloat16, OptimizerOptions::kAdamW});
  kinds.push_back(
      {"Latent attention, Muon", SmallLatent(), DType::kFloat32, OptimizerOptions::kMuon});
  ModelOptions narrow = SmallLlama();
  narrow.transformer.value_channels = 6;
  kinds.push_back(
      {"Values narrower than keys, Muon", narrow, DType::kFloat32, OptimizerOptions::kMuon});
  kinds.push_back({"Multi-token prediction, bf16, AdamW", SmallMtp(), DType::kBFloat16,
                   OptimizerOptions::kAdamW});
  ModelOptions hybrid = SmallHybrid();
  // As many groups as there are ranks.
  hybrid.transformer.mamba.num_groups = hybrid.transformer.delta.num_key_heads = 8;
  kinds.push_back({"Hybrid, bf16, AdamW", hybrid, DType::kBFloat16, OptimizerOptions::kAdamW});
  kinds.push_back({"Hybrid, Muon", hybrid, DType::kFloat32, OptimizerOptions::kMuon});
  kinds.push_back({"Llama, bf16, AdamW with moments in fp8", SmallLlama(), DType::kBFloat16,
                   OptimizerOptions::kAdamW, DType::kUInt8});
  return kinds;
}

class ReshardTest : public ::testing::Test {
 protected:
  std::string Directory(const std::string& name) const {
    return absl::StrCat(::testing::TempDir(), "/reshard_", name);
  }
};

TEST_F(ReshardTest, AnyLayoutLoadsWhatAnyOtherSavedBitForBit) {
  const std::vector<Layout> layouts = Layouts();
  ASSERT_GT(layouts.size(), 40u);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const CountingSource source;
  const std::vector<Kind> kinds = Kinds();
  for (size_t from = 0; from < 3 * kinds.size(); ++from) {
    const Kind& kind = kinds[from % kinds.size()];
    SCOPED_TRACE(kind.name);
    TrainerOptions run = TinyRun(kind.model, kind.optimizer);
    run.model.transformer.dtype = kind.dtype;
    run.optimizer.exp_avg_dtype = run.optimizer.exp_avg_sq_dtype = kind.moments;
    LayoutRun saved;
    saved.layout = layouts[random() % layouts.size()];
    saved.steps = 1;
    saved.save = Directory(absl::StrCat(from));
    const LayoutOutcome want = TrainOnLayout(run, saved, source);
    for (int to = 0; to < 10; ++to) {
      LayoutRun loaded;
      loaded.layout = layouts[random() % layouts.size()];
      loaded.load = saved.save;
      SCOPED_TRACE(absl::StrCat(ToString(saved.layout), " to ", ToString(loaded.layout)));
      const LayoutOutcome got = TrainOnLayout(run, loaded, source);
      ASSERT_EQ(got.state.size(), want.state.size());
      EXPECT_TRUE(got.state == want.state);
    }
    EXPECT_TRUE(PosixFileSystem().RemoveTree(saved.save).ok());
  }
}

std::vector<Layout> LayoutsOfExperts() {
  std::vector<Layout> layouts;
  for (int tensor : {1, 2}) {
    for (int pipeline : {1, 2}) {
      for (int data : {1, 2, 4}) {
        for (int expert : {1, 2, 4, 8}) {
          for (int expert_tensor : {1, 2}) {
            Layout layout;
            layout.tensor = tensor;
            layout.pipeline = pipeline;
            layout.data = data;
            layout.expert = expert;
            layout.expert_tensor = expert_tensor;
            if (layout.ranks() > 8 || tensor * data % (expert * expert_tensor) != 0) continue;
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  return layouts;
}

TEST_F(ReshardTest, AnyLayoutOfExpertsLoadsWhatAnyOtherSavedBitForBit) {
  const std::vector<Layout> layouts = LayoutsOfExperts();
  ASSERT_GT(layouts.size(), 20u);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const CountingSource source;
  for (int from = 0; from < 6; ++from) {
    TrainerOptions run = TinyRun(SmallDeepSeek(), OptimizerOptions::kAdamW);
    if (from % 2 == 0) run.model.transformer.dtype = DType::kBFloat16;
    LayoutRun saved;
    saved.layout = layouts[random() % layouts.size()];
    saved.steps = 1;
    saved.save = Directory(absl::StrCat("experts", from));
    const LayoutOutcome want = TrainOnLayout(run, saved, source);
    EXPECT_EQ(want.state.count("decoder.layers.3.mlp.router.expert_bias"), 1u);
    for (int to = 0; to < 6; ++to) {
      LayoutRun loaded;
      loaded.layout = layouts[random() % layouts.size()];
      loaded.load = saved.save;
      SCOPED_TRACE(absl::StrCat(ToString(saved.layout), " to ", ToString(loaded.layout)));
      EXPECT_TRUE(TrainOnLayout(run, loaded, source).state == want.state);
    }
    EXPECT_TRUE(PosixFileSystem().RemoveTree(saved.save).ok());
  }
}

// One run on three layouts in turn: every sample is read once for each copy of the model's ranks,
// none twice, none skipped, and all losses are those of one rank.
TEST_F(ReshardTest, TrainingGoesOnWhereItWasOnOtherRanks) {
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  LayoutRun whole;
  whole.steps = 9;
  const CountingSource undisturbed;
  const LayoutOutcome want = TrainOnLayout(run, whole, undisturbed);

  std::vector<Layout> layouts(3);
  layouts[0].tensor = layouts[0].pipeline = layouts[0].data = 2;
  layouts[0].sequence_parallel = true;
  layouts[0].sharding = DataSharding::kWeights;
  layouts[1].data = layouts[1].context = 2;
  layouts[1].sharding = DataSharding::kGradients;
  layouts[1].overlap = true;
  layouts[2].pipeline = 2;
  layouts[2].chunks = 2;
  layouts[2].schedule = ScheduleKind::kZeroBubbleV;
  layouts[2].tensor = 4;
  const CountingSource source;
  std::vector<double> losses;
  std::string last;
  for (int part = 0; part < 3; ++part) {
    LayoutRun how;
    how.layout = layouts[part];
    how.steps = 3;
    how.load = last;
    how.save = last = Directory(absl::StrCat("part", part));
    const LayoutOutcome got = TrainOnLayout(run, how, source);
    losses.insert(losses.end(), got.losses.begin(), got.losses.end());
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(source.reads(part * 24 + i), how.layout.ranks() / how.layout.data) << i;
    }
    EXPECT_EQ(source.reads((part + 1) * 24), 0);
  }
  ASSERT_EQ(losses.size(), want.losses.size());
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(losses[i], want.losses[i], 2e-6 * want.losses[i]) << i;
}

}  // namespace
}  // namespace megatron
