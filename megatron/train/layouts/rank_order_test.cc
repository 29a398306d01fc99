// Trains in every order of ranks that a layout can have: the curves are that of the default order,
// and a checkpoint of one order continues in another.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-6;  // as in parallel_equivalence_test

// Returns the accepted orders that number the ranks of `layout` differently, the default first.
std::vector<RankOrder> OrdersOf(const Layout& layout) {
  ParallelSizes sizes;
  sizes.tensor = layout.tensor;
  sizes.context = layout.context;
  sizes.pipeline = layout.pipeline;
  sizes.data = layout.data;
  sizes.expert = layout.expert;
  if (layout.expert > 1) sizes.expert_tensor = layout.expert_tensor;
  std::vector<RankOrder> orders;
  std::set<std::string> seen;
  for (const RankOrder& order : RankOrder::All()) {
    sizes.order = order;
    const auto dense = RankGrid::Create(sizes, layout.ranks()),
               expert = RankGrid::CreateExpert(sizes, layout.ranks());
    if (!expert.ok()) continue;
    std::string places;
    for (int rank = 0; rank < layout.ranks(); ++rank)
      absl::StrAppend(&places, dense->Describe(rank), ", ", expert->Describe(rank), "; ");
    if (seen.insert(places).second) orders.push_back(order);
  }
  return orders;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    const std::string& load, const std::string& save) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.load = load;
  how.save = save;
  return TrainOnLayout(run, how, CountingSource());
}

// Groups list their ranks by coordinates, so the losses of equal weights are sums in the same
// order. The norm is a sum in the order of all ranks.
void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  EXPECT_EQ(got.losses[0], want.losses[0]);
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kTolerance * want.norms[i]) << "step " << i;
    EXPECT_NEAR(got.balances[i], want.balances[i], kTolerance * (1e-3 + want.balances[i]));
  }
}

// Trains in every order, and continues in each what the one before it has saved. Returns how many
// orders there are.
size_t TrainInEveryOrder(const TrainerOptions& run, Layout layout, const std::string& name) {
  std::string saved = absl::StrCat(::testing::TempDir(), "/rank_order_", name);
  const LayoutOutcome want = Train(run, layout, kSteps, "", saved);
  const LayoutOutcome later = Train(run, layout, kSteps, saved, "");
  const std::vector<RankOrder> orders = OrdersOf(layout);
  for (const RankOrder& order : orders) {
    SCOPED_TRACE(order.ToString());
    layout.order = order;
    ExpectTheSame(Train(run, layout, kSteps, "", ""), want);
    // A checkpoint that is loaded and saved has the same bits.
    const std::string again = absl::StrCat(saved, "_");
    EXPECT_TRUE(Train(run, layout, 0, saved, again).state == want.state);
    EXPECT_TRUE(PosixFileSystem().RemoveTree(saved).ok());
    saved = again;
    ExpectTheSame(Train(run, layout, kSteps, saved, ""), later);
  }
  EXPECT_TRUE(PosixFileSystem().RemoveTree(saved).ok());
  return orders.size();
}

TEST(RankOrderTest, TensorPipelineAndData) {
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.sequence_parallel = true;
  layout.sharding = DataSharding::kStates;
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  EXPECT_EQ(TrainInEveryOrder(run, layout, "tp"), 6u);
}

TEST(RankOrderTest, TensorContextAndData) {
  Layout layout;
  layout.tensor = layout.context = layout.data = 2;
  layout.sharding = DataSharding::kWeights;
  const TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  EXPECT_EQ(TrainInEveryOrder(run, layout, "cp"), 6u);
}

TEST(RankOrderTest, ContextAndPipelineInTeams) {
  Layout layout;
  layout.context = 4;
  layout.context_parallel = ContextParallel::kHierarchical;
  layout.context_team_size = 2;
  layout.pipeline = 2;
  layout.chunks = 2;
  const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  EXPECT_EQ(TrainInEveryOrder(run, layout, "teams"), 2u);
}

TEST(RankOrderTest, Experts) {
  TrainerOptions run = TinyRun(SmallMixtral(), OptimizerOptions::kSgd);
  run.model.transformer.moe.layers = {false, true, false, true};
  run.model.transformer.init_std = 0.08f;
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = layout.expert = 2;
  // An expert lies on one rank, or is cut over two.
  for (const int parts : {1, 2}) {
    SCOPED_TRACE(parts);
    layout.expert_tensor = parts;
    EXPECT_GE(TrainInEveryOrder(run, layout, absl::StrCat("ep", parts)), 6u);
  }
}

}  // namespace
}  // namespace megatron
