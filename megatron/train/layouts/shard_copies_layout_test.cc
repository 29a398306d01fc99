// Ranks that share out states and are lost: what the others have in their memory is the state of
// the undisturbed run, bit for bit, on any layout that is left.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/trainer/kept_state.h"

namespace megatron {
namespace {

constexpr int kSteps = 5;
// The bound of other tests for losses of different layouts.
constexpr double kTolerance = 2e-6;

Layout DataRanks(int data, DataSharding sharding) {
  Layout layout;
  layout.data = data;
  layout.sharding = sharding;
  return layout;
}

TrainerOptions RunWith(OptimizerOptions::Kind optimizer, int copies = 1) {
  TrainerOptions run = TinyRun(SmallLlama(), optimizer);
  run.shard_copies = copies;
  return run;
}

struct TrainedAndKept {
  LayoutOutcome outcome;
  std::vector<std::optional<KeptState>> kept;  // by rank
};

// Trains, and keeps what ranks would have if the world were lost then.
TrainedAndKept TrainAndKeep(const TrainerOptions& run, const Layout& layout, int steps = kSteps,
                            int ranks_of_host = 0) {
  TrainedAndKept result;
  result.kept.resize(static_cast<size_t>(layout.ranks()));
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.ranks_of_host = ranks_of_host;
  how.at_start = [](int, Trainer* trainer) { return trainer->CopyShards(-1); };
  how.at_end = [&](int rank, Trainer* trainer) {
    result.kept[rank] = KeepState(*trainer, -1);
    return absl::OkStatus();
  };
  result.outcome = TrainOnLayout(run, how, CountingSource());
  return result;
}

// Goes on after so many steps on a layout whose ranks were these before; -1: the rank is a new one.
LayoutOutcome GoOn(const TrainerOptions& run, const Layout& layout, const std::vector<int>& before,
                   const TrainedAndKept& trained, int after = kSteps, int steps = 0) {
  EXPECT_EQ(static_cast<size_t>(layout.ranks()), before.size());
  std::vector<std::optional<KeptState>> kept = trained.kept;
  StateInMemory state;
  state.iteration = after;
  state.shards = kept[before[0]].has_value() ? kept[before[0]]->sharing.count : 0;
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.at_start = [&](int rank, Trainer* trainer) -> absl::Status {
    KeptState* const mine = before[rank] < 0 ? nullptr : &*kept[before[rank]];
    return RestoreKeptState(mine, state, trainer).status();
  };
  return TrainOnLayout(run, how, CountingSource());
}

void ExpectSameState(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state) {
    const auto found = got.state.find(name);
    ASSERT_TRUE(found != got.state.end()) << name;
    EXPECT_TRUE(found->second == tensor) << name << " has other bits";
  }
}

TEST(ShardCopiesTest, TheStateIsWholeWithoutARank) {
  for (const DataSharding sharding :
       {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
    for (const auto optimizer : {OptimizerOptions::kAdamW, OptimizerOptions::kMuon}) {
      const TrainerOptions run = RunWith(optimizer);
      const TrainedAndKept trained = TrainAndKeep(run, DataRanks(4, sharding));
      for (int lost = 0; lost < 4; ++lost) {
        SCOPED_TRACE(testing::Message() << "zero " << static_cast<int>(sharding) << ", optimizer "
                                        << static_cast<int>(optimizer) << ", rank " << lost);
        std::vector<int> left = {0, 1, 2, 3};
        left.erase(left.begin() + lost);
        ExpectSameState(GoOn(run, DataRanks(3, sharding), left, trained), trained.outcome);
      }
    }
  }
}

TEST(ShardCopiesTest, TrainingGoesOnAsWithoutALoss) {
  const TrainerOptions run = RunWith(OptimizerOptions::kSgd);
  const TrainedAndKept trained = TrainAndKeep(run, DataRanks(4, DataSharding::kStates));
  const std::vector<double> wanted =
      TrainAndKeep(run, DataRanks(4, DataSharding::kStates), kSteps + 3).outcome.losses;
  // Three of the ranks, and a new one besides them, with other shards.
  for (const auto& [layout, before] :
       {std::make_pair(DataRanks(3, DataSharding::kStates), std::vector<int>{0, 2, 3}),
        std::make_pair(DataRanks(4, DataSharding::kWeights), std::vector<int>{0, 2, 3, -1})}) {
    const LayoutOutcome outcome = GoOn(run, layout, before, trained, kSteps, 3);
    ASSERT_EQ(outcome.losses.size(), 3u);
    for (int i = 0; i < 3; ++i)
      EXPECT_NEAR(outcome.losses[i], wanted[kSteps + i], kTolerance * wanted[kSteps + i]);
  }
}

// Where some have not got the newest copies, the generation before counts.
TEST(ShardCopiesTest, TheGenerationBeforeIsThereToo) {
  TrainerOptions run = RunWith(OptimizerOptions::kAdamW);
  const Layout layout = DataRanks(4, DataSharding::kStates);
  const TrainedAndKept trained = TrainAndKeep(run, layout);
  const LayoutOutcome before = TrainAndKeep(run, layout, kSteps - 1).outcome;
  ExpectSameState(GoOn(run, DataRanks(3, DataSharding::kStates), {0, 1, 3}, trained, kSteps - 1),
                  before);
  // Copies of every third step, and of the start.
  run.shard_copy_interval = 3;
  const TrainedAndKept seldom = TrainAndKeep(run, layout);
  std::map<int64_t, int> iterations;
  for (const KeptShard& shard : seldom.kept[0]->shards)
    ++iterations[shard.common.progress.iteration];
  EXPECT_EQ(iterations, (std::map<int64_t, int>{{0, 2}, {3, 2}}));
  ExpectSameState(GoOn(run, DataRanks(3, DataSharding::kStates), {0, 1, 3}, seldom, 3),
                  TrainAndKeep(run, layout, 3).outcome);
}

TEST(ShardCopiesTest, AsManyNeighboursMayBeLostAsThereAreCopies) {
  const TrainerOptions run = RunWith(OptimizerOptions::kAdamW, /*copies=*/2);
  const TrainedAndKept trained = TrainAndKeep(run, DataRanks(4, DataSharding::kGradients));
  ExpectSameState(GoOn(run, DataRanks(2, DataSharding::kGradients), {0, 3}, trained),
                  trained.outcome);
  // More copies than other ranks are not made.
  const TrainerOptions many = RunWith(OptimizerOptions::kAdamW, /*copies=*/16);
  const TrainedAndKept all = TrainAndKeep(many, DataRanks(2, DataSharding::kStates));
  EXPECT_EQ(all.kept[0]->shards.size(), 4u);
  ExpectSameState(GoOn(many, DataRanks(1, DataSharding::kNone), {1}, all), all.outcome);
}

// The shards of a host are on the other one.
TEST(ShardCopiesTest, AHostMayBeLost) {
  const TrainerOptions run = RunWith(OptimizerOptions::kAdamW);
  for (const DataSharding sharding : {DataSharding::kStates, DataSharding::kWeights}) {
    const TrainedAndKept trained =
        TrainAndKeep(run, DataRanks(4, sharding), kSteps, /*ranks_of_host=*/2);
    for (const std::vector<int>& left : {std::vector<int>{0, 1}, {2, 3}})
      ExpectSameState(GoOn(run, DataRanks(2, sharding), left, trained), trained.outcome);
  }
}

TEST(ShardCopiesTest, GridsAndInstances) {
  struct Case {
    Layout layout, next;
    std::vector<int> before;
    int copies = 1;
  };
  std::vector<Case> cases;
  // A replica whose rank was lost is left out; its other rank's shard has a copy, too.
  Layout tensor = DataRanks(3, DataSharding::kStates);
  tensor.tensor = 2;
  Layout next = tensor;
  next.data = 2;
  cases.push_back({tensor, next, {0, 1, 4, 5}});
  Layout pipeline = DataRanks(3, DataSharding::kGradients);
  pipeline.pipeline = 2;
  next = pipeline;
  next.data = 2;
  cases.push_back({pipeline, next, {0, 2, 3, 5}});
  Layout context = DataRanks(2, DataSharding::kWeights);
  context.context = 2;
  next = context;
  next.data = 1;
  cases.push_back({context, next, {0, 3}, /*copies=*/2});
  // Instances have the same shards, or parts of them.
  Layout instances = DataRanks(4, DataSharding::kStates);
  instances.optimizer_instances = 2;
  cases.push_back({instances, DataRanks(2, DataSharding::kStates), {2, 3}});
  cases.push_back({instances, DataRanks(3, DataSharding::kStates), {0, 2, 3}});
  instances.shards_states_over_instances = true;
  cases.push_back({instances, DataRanks(3, DataSharding::kWeights), {0, 2, 3}});
  for (const Case& each : cases) {
    SCOPED_TRACE(ToString(each.layout) + " to " + ToString(each.next));
    const TrainerOptions run = RunWith(OptimizerOptions::kAdamW, each.copies);
    const TrainedAndKept trained = TrainAndKeep(run, each.layout);
    ExpectSameState(GoOn(run, each.next, each.before, trained), trained.outcome);
  }
}

TEST(ShardCopiesTest, MainWeightsOfRoundedOnesAndScalersAreKept) {
  ModelOptions model = SmallLlama();
  model.transformer.dtype = DType::kBFloat16;
  TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
  run.shard_copies = 1;
  const TrainedAndKept trained = TrainAndKeep(run, DataRanks(4, DataSharding::kWeights));
  ExpectSameState(GoOn(run, DataRanks(3, DataSharding::kStates), {1, 2, 3}, trained),
                  trained.outcome);
}

// Each rank sends its shard once a step, and all shards are the state. (The harness compares memory
// with the plan.)
TEST(ShardCopiesTest, AStepSendsEachShardOnce) {
  const TrainedAndKept trained =
      TrainAndKeep(RunWith(OptimizerOptions::kAdamW), DataRanks(4, DataSharding::kStates));
  size_t shards = 0, state = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const KeptShard& shard : trained.kept[rank]->shards) {
      if (shard.shard == rank && shard.common.progress.iteration == kSteps)
        shards += shard.bytes.size();
    }
  }
  for (const auto& [name, tensor] : trained.outcome.state) state += tensor.bytes.size();
  EXPECT_EQ(shards, state);
  const std::vector<KeptShard>& first = trained.kept[0]->shards;
  const auto own = std::find_if(first.begin(), first.end(),
                                [](const KeptShard& shard) { return shard.shard == 0; });
  EXPECT_EQ(trained.outcome.sent->Of("", Collective::kExchange),
            kSteps * static_cast<int64_t>(own->bytes.size()));
  EXPECT_EQ(trained.outcome.sent->CallsOf("", Collective::kExchange), kSteps);
}

// Without copies nobody has the shard of another rank, and states that are not shared out are there
// in the memory of each rank.
TEST(ShardCopiesTest, WithoutCopiesThereAreNone) {
  EXPECT_FALSE(
      TrainAndKeep(RunWith(OptimizerOptions::kAdamW, 0), DataRanks(2, DataSharding::kStates))
          .kept[0]
          .has_value());
  const TrainerOptions run = RunWith(OptimizerOptions::kAdamW);
  const TrainedAndKept trained = TrainAndKeep(run, DataRanks(3, DataSharding::kNone));
  ExpectSameState(GoOn(run, DataRanks(2, DataSharding::kNone), {1, -1}, trained), trained.outcome);
}

}  // namespace
}  // namespace megatron
