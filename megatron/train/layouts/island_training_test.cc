// Tests runs whose optimizer instances are islands: they train apart, and an outer optimizer joins
// them every few steps.

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

Layout LayoutOf(int tensor, int pipeline, int data, int islands) {
  Layout layout;
  layout.tensor = tensor;
  layout.sequence_parallel = tensor > 1;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.optimizer_instances = islands;
  return layout;
}

Layout Sharded(Layout layout, DataSharding sharding, bool overlap = false) {
  layout.sharding = sharding;
  layout.overlap = overlap;
  return layout;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    const SampleSource& source = CountingSource()) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  return TrainOnLayout(run, how, source);
}

std::vector<float> Floats(const WholeTensor& tensor) {
  std::vector<float> values(tensor.shape.numel());
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

bool IsWeight(const std::string& name) { return !absl::StartsWith(name, "optimizer.state."); }

// Gradients of micro-batches weigh the same, so that the mean of the islands' is that of the global
// batch.
TrainerOptions PlainSgd() {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  run.optimizer.sgd_momentum = 0;
  run.clip_grad = 0;
  run.packing.per_token_loss = false;
  return run;
}

// Fragments 0 and 1 are sent after steps 2 and 4, and applied after steps 3 and 5.
OuterOptimizerOptions Streaming() {
  OuterOptimizerOptions outer;
  outer.sync_every = 4;
  outer.num_fragments = 2;
  outer.sync_delay = 1;
  outer.update_alpha = 0.5;
  return outer;
}

TEST(IslandTrainingTest, AnOuterStepAfterEachStepOfSgdIsDataParallelism) {
  TrainerOptions run = PlainSgd();
  for (const Layout& layout :
       {LayoutOf(1, 1, 2, 2), Sharded(LayoutOf(1, 1, 4, 2), DataSharding::kWeights),
        Sharded(LayoutOf(2, 1, 4, 4), DataSharding::kStates),
        Sharded(LayoutOf(1, 2, 4, 2), DataSharding::kGradients, /*overlap=*/true)}) {
    SCOPED_TRACE(ToString(layout));
    run.outer = {};
    const LayoutOutcome want = Train(run, layout, /*steps=*/4);
    run.outer = {1, 1, 0, false};
    const LayoutOutcome got = Train(run, layout, 4);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 2e-6 * want.losses[i]);
    int weights = 0;
    for (const auto& [name, tensor] : want.state) {
      if (!IsWeight(name)) continue;
      ++weights;
      const std::vector<float> a = Floats(got.state.at(name)), b = Floats(tensor);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(double{a[i]} - b[i], 2);
        norm += std::pow(double{b[i]}, 2);
      }
      // Gradients of zero but for rounding make biases of as little.
      EXPECT_LE(difference, 4e-12 * norm + 1e-14) << name;
    }
    EXPECT_GT(weights, 40);
  }
}

// The samples of one of two islands, as a run of its own reads them.
class SamplesOfIsland : public SampleSource {
 public:
  explicit SamplesOfIsland(int island) : island_(island) {}
  int64_t size() const override { return all_.size() / 2; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    return all_.Get(2 * index + island_, sample);
  }

 private:
  const int island_;
  const CountingSource all_;
};

// Each island is a run of one process on its half of the samples: with a mean of its own, and
// clipping by a norm of its own. Neither is told of the other.
TEST(IslandTrainingTest, BetweenOuterStepsEachIslandIsARunOfItsOwn) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  run.model.transformer.hidden_dropout = run.model.transformer.attention_dropout = 0;
  run.schedule.lr_decay_style = LrDecayStyle::kConstant;  // schedules count samples of all islands
  run.clip_grad = 0.5;
  constexpr int kSteps = 3;
  TrainerOptions half = run;
  half.batch_size.global_batch_size = 4;
  LayoutOutcome alone[2];
  for (int k = 0; k < 2; ++k)
    alone[k] = Train(half, LayoutOf(1, 1, 1, 1), kSteps, SamplesOfIsland(k));
  EXPECT_GT(alone[0].norms[0], run.clip_grad);
  EXPECT_NE(alone[0].norms[0], alone[1].norms[0]);
  for (const bool joins : {false, true}) {
    // FedAvg: lr 1 and no momentum.
    run.outer = {joins ? kSteps : kSteps + 1, 1, 0, false};
    const LayoutOutcome got = Train(run, LayoutOf(1, 1, 2, 2), kSteps);
    for (int i = 0; i < kSteps; ++i) {
      const double squares = std::pow(alone[0].norms[i], 2) + std::pow(alone[1].norms[i], 2);
      EXPECT_NEAR(got.norms[i], std::sqrt(squares / 2), 1e-6 * got.norms[i]);
      // The means of the halves weigh by their numbers of tokens, which are nearly the same.
      EXPECT_NEAR(got.losses[i], (alone[0].losses[i] + alone[1].losses[i]) / 2,
                  1e-2 * got.losses[i]);
    }
    for (const auto& [name, tensor] : alone[0].state) {
      if (IsWeight(name)) {
        const std::vector<float> a = Floats(tensor), b = Floats(alone[1].state.at(name));
        const std::vector<float> global = Floats(got.state.at(name));
        const auto masters = [&](int k) {
          return got.state.at(absl::StrCat("optimizer.state.island", k, ".fp32_param.", name));
        };
        if (joins) {
          EXPECT_EQ(Floats(masters(0)), global);
          EXPECT_EQ(Floats(masters(1)), global);
          for (size_t i = 0; i < a.size(); ++i)
            EXPECT_NEAR(global[i], (double{a[i]} + b[i]) / 2, 2e-7) << name;
        } else {
          EXPECT_TRUE(masters(0) == tensor);
          EXPECT_TRUE(masters(1) == alone[1].state.at(name));
        }
        continue;
      }
      // The states are the island's own, neither averaged nor begun anew.
      for (int k = 0; k < 2; ++k) {
        const std::string in_island = absl::StrCat(
            "optimizer.state.island", k, ".", name.substr(std::string("optimizer.state.").size()));
        EXPECT_TRUE(got.state.at(in_island) == alone[k].state.at(name)) << in_island;
      }
    }
  }
}

TEST(IslandTrainingTest, ShardingAndOverlapWithinAnIslandDecideNothing) {
  for (const Layout& layout :
       {LayoutOf(1, 1, 4, 2), LayoutOf(2, 1, 4, 2), LayoutOf(1, 2, 4, 2), LayoutOf(1, 1, 8, 4)}) {
    for (const int kind : {0, 1, 2}) {
      const bool bf16 = kind > 0;
      TrainerOptions run = TinyRun(bf16 ? SmallLlama() : SmallGpt2(), OptimizerOptions::kAdamW);
      if (bf16) run.model.transformer.dtype = DType::kBFloat16;
      run.outer.sync_every = 2;
      if (kind == 2) run.outer = Streaming();
      // Those that add gradients over micro-batches first, and over ranks first.
      LayoutOutcome first[2];
      for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                          DataSharding::kGradients, DataSharding::kWeights}) {
        const bool ranks_first = sharding >= DataSharding::kGradients && layout.data < 8;
        for (const bool overlap : {false, true}) {
          LayoutRun how;
          how.layout = Sharded(layout, sharding, overlap);
          how.steps = 3;
          how.evaluate = true;
          SCOPED_TRACE(absl::StrCat(ToString(how.layout), bf16 ? " bf16" : " fp32", kind));
          const LayoutOutcome got = TrainOnLayout(run, how, CountingSource());
          LayoutOutcome& want = first[ranks_first];
          if (want.losses.empty()) want = got;
          EXPECT_EQ(got.losses, want.losses);
          EXPECT_EQ(got.norms, want.norms);
          EXPECT_EQ(got.evaluation, want.evaluation);
          EXPECT_TRUE(got.state == want.state);
        }
      }
    }
  }
}

// At step 4 the islands have gone on from the global copy of step 3, by which they evaluate.
TEST(IslandTrainingTest, EvaluationsAreOfTheGlobalCopyAndChangeNothing) {
  for (const bool bf16 : {false, true}) {
    TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
    if (bf16) run.model.transformer.dtype = DType::kBFloat16;
    run.outer.sync_every = 3;
    LayoutRun how;
    how.layout = Sharded(LayoutOf(1, 1, 4, 2), DataSharding::kStates, /*overlap=*/true);
    how.evaluate = true;
    std::map<int, LayoutOutcome> after;
    for (const int steps : {3, 4, 6}) {
      how.steps = steps;
      after[steps] = TrainOnLayout(run, how, CountingSource());
    }
    EXPECT_EQ(after[4].evaluation, after[3].evaluation);
    EXPECT_NE(after[6].evaluation, after[3].evaluation);
    how.evaluate = false;
    how.eval_interval = 1;
    const LayoutOutcome evaluated = TrainOnLayout(run, how, CountingSource());
    EXPECT_EQ(evaluated.losses, after[6].losses);
    EXPECT_TRUE(evaluated.state == after[6].state);
  }
}

class IslandCheckpointTest : public ::testing::Test {
 protected:
  ~IslandCheckpointTest() override { EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok()); }

  // Trains `steps`, and then until step 5 in a new run that begins with the checkpoint.
  LayoutOutcome TrainInTwoRuns(const TrainerOptions& run, const Layout& layout, int steps) {
    Save(run, layout, steps);
    LayoutRun second;
    second.layout = layout;
    second.steps = 5 - steps;
    second.load = directory_;
    const LayoutOutcome outcome = TrainOnLayout(run, second, CountingSource());
    EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
    return outcome;
  }

  LayoutOutcome Save(const TrainerOptions& run, const Layout& layout, int steps) {
    LayoutRun first;
    first.layout = layout;
    first.steps = steps;
    first.save = directory_;
    return TrainOnLayout(run, first, CountingSource());
  }

  LayoutOutcome Load(const TrainerOptions& run, const Layout& layout) {
    LayoutRun loaded;
    loaded.layout = layout;
    loaded.load = directory_;
    return TrainOnLayout(run, loaded, CountingSource());
  }

  // Returns the text of the harness's failures.
  std::string FailureOfLoad(const TrainerOptions& run, const Layout& layout) {
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
      Load(run, layout);
    }
    std::string text;
    for (int i = 0; i < failures.size(); ++i)
      absl::StrAppend(&text, failures.GetTestPartResult(i).message());
    return text;
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/islands");
};

TEST_F(IslandCheckpointTest, ARunGoesOnWithTheSameBitsFromAnyStep) {
  struct Scene {
    ModelOptions model;
    DType dtype;
    Layout layout;
  };
  Layout experts = LayoutOf(1, 1, 4, 2);
  experts.expert = 2;
  const Scene scenes[] = {
      {SmallGpt2(), DType::kFloat32, LayoutOf(1, 1, 2, 2)},
      {SmallLlama(), DType::kBFloat16, Sharded(LayoutOf(1, 2, 4, 2), DataSharding::kWeights, true)},
      {SmallGpt2(), DType::kBFloat16, Sharded(LayoutOf(2, 1, 4, 2), DataSharding::kStates, true)},
      {SmallDeepSeek(), DType::kFloat32, Sharded(experts, DataSharding::kGradients)},
  };
  for (const Scene& scene : scenes) {
    SCOPED_TRACE(ToString(scene.layout));
    TrainerOptions run = TinyRun(scene.model, OptimizerOptions::kAdamW);
    run.model.transformer.dtype = scene.dtype;
    for (const bool streaming : {false, true}) {
      run.outer = {};
      run.outer.sync_every = 2;
      if (streaming) run.outer = Streaming();
      const LayoutOutcome want = Train(run, scene.layout, 5);
      for (int steps = 1; steps < 5; ++steps) {
        SCOPED_TRACE(absl::StrCat(steps, streaming ? " streaming" : ""));
        const LayoutOutcome got = TrainInTwoRuns(run, scene.layout, steps);
        EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + steps, want.losses.end()));
        EXPECT_TRUE(got.state == want.state);
      }
    }
  }
}

TEST_F(IslandCheckpointTest, AnyLayoutOfAsManyIslandsLoadsIt) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
    run.model.transformer.dtype = dtype;
    run.outer.sync_every = 2;
    const LayoutOutcome want =
        Save(run, Sharded(LayoutOf(2, 1, 4, 2), DataSharding::kStates), /*steps=*/3);
    for (const Layout& layout :
         {LayoutOf(1, 1, 2, 2), Sharded(LayoutOf(1, 2, 4, 2), DataSharding::kWeights),
          Sharded(LayoutOf(1, 1, 8, 2), DataSharding::kGradients)}) {
      SCOPED_TRACE(ToString(layout));
      EXPECT_TRUE(Load(run, layout).state == want.state);
    }
    EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
  }
}

TEST_F(IslandCheckpointTest, AnyLayoutLoadsAFragmentInFlight) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.outer = Streaming();
  const LayoutOutcome want =
      Save(run, Sharded(LayoutOf(2, 1, 4, 2), DataSharding::kStates), /*steps=*/2);
  std::vector<std::string> sent;
  const std::string prefix = "optimizer.state.outer_gradient.";
  for (const auto& [name, tensor] : want.state) {
    if (absl::StartsWith(name, prefix)) sent.push_back(name.substr(prefix.size()));
  }
  EXPECT_FALSE(sent.empty());
  for (const std::string& name : sent) EXPECT_EQ(FragmentOf(name, 2), 0) << name;
  for (const Layout& layout :
       {LayoutOf(1, 1, 2, 2), Sharded(LayoutOf(1, 2, 4, 2), DataSharding::kWeights)}) {
    SCOPED_TRACE(ToString(layout));
    EXPECT_TRUE(Load(run, layout).state == want.state);
  }
  run.outer.sync_delay = 0;
  EXPECT_TRUE(absl::StrContains(FailureOfLoad(run, LayoutOf(1, 1, 2, 2)),
                                "was saved while islands sent each other fragment 0 of 2, and this "
                                "run has diloco.num_fragments = 2 and "
                                "diloco.fragment_sync_delay = 0"));
  run.outer = Streaming();
  run.outer.num_fragments = 1;
  EXPECT_TRUE(absl::StrContains(FailureOfLoad(run, LayoutOf(1, 1, 2, 2)),
                                "fragment 0 of 2, and this run has diloco.num_fragments = 1"));
}

TEST_F(IslandCheckpointTest, AnotherNumberOfIslandsIsRefused) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  run.outer.sync_every = 2;
  Save(run, LayoutOf(1, 1, 2, 2), /*steps=*/1);
  EXPECT_TRUE(absl::StrContains(FailureOfLoad(run, LayoutOf(1, 1, 4, 4)),
                                "has the optimizer states of 2 islands, each of its own, and this "
                                "run has 4 (diloco.sync_every, "
                                "parallel.num_distributed_optimizer_instances)"));
  run.outer = {};
  EXPECT_TRUE(absl::StrContains(FailureOfLoad(run, LayoutOf(1, 1, 2, 1)),
                                "and this run has none (diloco.sync_every"));
}

// The global copy is the weights that were loaded, and the islands have the same states.
TEST_F(IslandCheckpointTest, IslandsBeginWithACheckpointOfARunWithoutIslands) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  const LayoutOutcome saved = Save(run, LayoutOf(1, 1, 2, 1), /*steps=*/2);
  run.outer.sync_every = 2;
  const LayoutOutcome got = Load(run, LayoutOf(1, 1, 2, 2));
  for (const auto& [name, tensor] : saved.state) {
    if (IsWeight(name)) {
      EXPECT_TRUE(got.state.at(name) == tensor) << name;
      const std::vector<float> momentum =
          Floats(got.state.at("optimizer.state.outer_momentum." + name));
      EXPECT_EQ(momentum, std::vector<float>(momentum.size()));
    } else {
      EXPECT_TRUE(got.state.at("optimizer.state.island1." +
                               name.substr(std::string("optimizer.state.").size())) == tensor);
    }
  }
}

// A round sends each rank's shard once; between rounds go single numbers.
TEST(IslandTrafficTest, BytesBetweenIslandsAreThoseOfOneSumOfShards) {
  for (const int islands : {2, 4}) {
    for (const int ranks : {1, 2}) {  // in an island
      TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
      run.model.transformer.dtype = DType::kBFloat16;
      run.outer.sync_every = 3;
      const Layout layout =
          Sharded(LayoutOf(1, 1, islands * ranks, islands), DataSharding::kStates);
      SCOPED_TRACE(ToString(layout));
      const auto stage = MakeStage(run.model, {{DeviceType::kMeta}});
      double parameters = 0;
      for (const Parameter* parameter : stage->parameters())
        parameters += static_cast<double>(parameter->sharding.local_shape.numel());
      const auto sent = [&](int steps) {
        const LayoutOutcome outcome = Train(run, layout, steps);
        return static_cast<double>(outcome.sent->Of("dp-cp-replicas", Collective::kAllReduce));
      };
      const double round = 2.0 * (islands - 1) / islands * 4 * parameters / ranks;
      const double before = sent(2);
      EXPECT_LE(before, 2 * 4 * 5 * 2.0);
      // Buckets are padded.
      EXPECT_NEAR(sent(3) - before, round, 0.05 * round);
      EXPECT_NEAR(sent(6) - before, 2 * round, 0.05 * 2 * round);
      // Codes are gathered, half a byte or one for an element and a scale for each block.
      run.outer.gradient_type = OuterGradientType::kE3M0;
      EXPECT_LE(sent(3), before + 2 * 4 * 5 * 2.0);
      const auto gathered = [&] {
        return static_cast<double>(
            Train(run, layout, 3).sent->Of("dp-cp-replicas", Collective::kAllGather));
      };
      const double bytes = (islands - 1) * parameters / ranks * (0.5 + 1.0 / 128);
      EXPECT_NEAR(gathered(), bytes, 0.05 * bytes);
      run.outer.gradient_type = OuterGradientType::kInt8;
      const double twice = (islands - 1) * parameters / ranks * (1 + 4.0 / 256);
      EXPECT_NEAR(gathered(), twice, 0.05 * twice);
    }
  }
}

// With strided layers each of the fragments is a part of the bytes of a round.
TEST(IslandTrafficTest, EachStepSendsTheBytesOfItsFragmentAlone) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  run.outer.sync_every = 4;
  run.outer.num_fragments = 2;
  const auto stage = MakeStage(run.model, {{DeviceType::kMeta}});
  double elements[2] = {0, 0};
  for (const Parameter* parameter : stage->parameters()) {
    elements[FragmentOf(parameter->name, 2)] +=
        static_cast<double>(parameter->sharding.local_shape.numel());
  }
  const auto sent = [&](int steps) {
    const LayoutOutcome outcome = Train(run, LayoutOf(1, 1, 2, 2), steps);
    return static_cast<double>(outcome.sent->Of("dp-cp-replicas", Collective::kAllReduce));
  };
  const double after[] = {sent(1), sent(2), sent(3), sent(4)};
  EXPECT_LE(after[0], 4 * 5 * 2.0);
  EXPECT_NEAR(after[1] - after[0], 4 * elements[0], 0.05 * 4 * elements[0]);
  EXPECT_LE(after[2] - after[1], 4 * 5 * 2.0);
  EXPECT_NEAR(after[3] - after[2], 4 * elements[1], 0.05 * 4 * elements[1]);
  EXPECT_GT(elements[0], elements[1] / 4);
  EXPECT_GT(elements[1], elements[0] / 4);
}

}  // namespace
}  // namespace megatron
