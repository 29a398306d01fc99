#include "megatron/optim/outer_optimizer.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/island_groups.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

absl::StatusOr<ProcessGroups> GroupsOf(const ParallelSizes& sizes, const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  return MakeGroups(dense, expert, world.communicator());
}

// The weights and the momentum of one number after each outer step, where the islands had these
// results.
struct Trajectory {
  std::vector<float> weights, momentum;
};

Trajectory Follow(const OuterOptimizerOptions& options,
                  const std::vector<std::vector<float>>& results) {
  const int islands = static_cast<int>(results[0].size());
  std::vector<Trajectory> all(islands);
  const absl::Status status =
      RunRanks(islands, [&](int rank, const ProcessGroup& world) -> absl::Status {
        ParallelSizes sizes;
        sizes.data = sizes.optimizer_instances = islands;
        MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
        ThreadPool pool(1);
        const Stream stream = Stream::Cpu(&pool);
        TestModel model;
        const Parameter* const number = model.Add("number", Replicated({1}));
        model.Build();
        OuterOptimizer outer(options, groups, model.buffers.get(), &model.ledger);
        *number->data.data<float>() = 1;
        outer.Start(stream);
        for (const std::vector<float>& result : results) {
          *number->data.data<float>() = result[rank];
          outer.Step(stream);
          const FlatParameter& flat = model.buffers->parameters()[0];
          const Bucket& bucket = model.buffers->bucket_of(flat);
          EXPECT_EQ(Floats(outer.Global(bucket, flat.range)), Floats(number->data));
          all[rank].weights.push_back(*number->data.data<float>());
          if (outer.has_momentum())
            all[rank].momentum.push_back(*outer.Momentum(bucket, flat.range).data<float>());
        }
        return world.status();
      });
  EXPECT_THAT(status, IsOk());
  for (const Trajectory& other : all) EXPECT_EQ(other.weights, all[0].weights);
  return all[0];
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-7) << i;
}

const std::vector<std::vector<float>>& Results() {
  static const auto* const results =
      new std::vector<std::vector<float>>{{0.9f, 0.8f}, {0.75f, 0.65f}, {0.5f, 0.6f}};
  return *results;
}

// The numbers are torch.optim.SGD's with nesterov=True.
TEST(OuterOptimizerTest, NesterovsStepsAreTorchs) {
  const Trajectory got = Follow({1, 0.7, 0.9, true}, Results());
  ExpectNear(got.weights, {0.8005, 0.581785, 0.40598245});
  ExpectNear(got.momentum, {0.15, 0.2355, 0.243735});
}

TEST(OuterOptimizerTest, MomentumWithoutNesterovIsTorchs) {
  // v = 0.15, then 0.135 + 0.195, then 0.297 + (0.664 - 0.55).
  const Trajectory got = Follow({1, 0.7, 0.9, false}, Results());
  ExpectNear(got.momentum, {0.15, 0.33, 0.411});
  ExpectNear(got.weights, {0.895, 0.664, 0.3763});
}

TEST(OuterOptimizerTest, WithoutMomentumAndWithLearningRate1ItIsTheMean) {
  const Trajectory got = Follow({1, 1, 0, true}, Results());
  EXPECT_TRUE(got.momentum.empty());
  ExpectNear(got.weights, {0.85, 0.7, 0.55});
}

TEST(OuterOptimizerTest, OneIslandHasMomentumAlone) {
  // d = 0.5; then 0.525 - 0.25 = 0.275.
  const Trajectory got = Follow({1, 0.5, 0.9, true}, {{0.5f}, {0.25f}});
  ExpectNear(got.momentum, {0.5, 0.725});
  ExpectNear(got.weights, {0.525, 0.525 - 0.5 * (0.275 + 0.9 * 0.725)});
}

// Four ranks in two islands, each of which shards its states over two ranks. Their masters are
// small fractions, whose mean is exact.
TEST(OuterOptimizerTest, EachRankAveragesItsShard) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const absl::Status status =
        RunRanks(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
          ParallelSizes sizes;
          sizes.data = 4;
          sizes.optimizer_instances = 2;
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups island, GroupsOfIsland(groups, false));
          ThreadPool pool(1);
          const Stream stream = Stream::Cpu(&pool);
          TestModel model({}, dtype);
          model.Add("matrix", Replicated({6, 5}));
          model.Add("bias", Replicated({7}));
          model.buffer_options.sharding = DataSharding::kStates;
          model.buffer_options.data =
              DataRankOf(island.data_context_shards, island.data_context_replicas);
          model.Build();
          OuterOptimizer outer({1, 1, 0.5, true}, groups, model.buffers.get(), &model.ledger);
          ParameterBuffers& buffers = *model.buffers;
          const int k = rank / 2;
          EXPECT_EQ(outer.islands(), 2);
          EXPECT_EQ(outer.island(), k);
          const auto fill = [&](int add) {
            for (const Bucket& bucket : buffers.buckets()) {
              const FlatRange range = buffers.optimizer_range(bucket);
              float* const masters = buffers.Masters(bucket, range).data<float>();
              for (int64_t i = 0; i < range.size(); ++i)
                masters[i] = Fraction(range.begin + i) + static_cast<float>(add);
            }
          };
          fill(0);
          outer.Start(stream);
          // The islands go 1 and 3 down: the mean is 2, and Nesterov's step is 1.5 times that.
          fill(k == 0 ? -1 : -3);
          outer.Step(stream);
          int64_t seen = 0, all = 0;
          for (const Bucket& bucket : buffers.buckets()) {
            const FlatRange range = buffers.optimizer_range(bucket);
            all += bucket.range.size();
            const std::vector<float> masters = Floats(buffers.Masters(bucket, range));
            EXPECT_EQ(Floats(outer.Global(bucket, range)), masters);
            for (int64_t i = 0; i < range.size(); ++i, ++seen) {
              const float want = Fraction(range.begin + i) - 3;
              EXPECT_EQ(masters[i], want);
              if (dtype == DType::kBFloat16) {
                EXPECT_EQ(ToFloat(buffers.Weights(bucket, range).data<BFloat16>()[i]), want);
              }
            }
          }
          EXPECT_GE(seen, 37 / 2);
          EXPECT_EQ(2 * seen, all);
          fill(5);
          outer.SwapWithMasters(stream);
          const Bucket& first = buffers.buckets()[0];
          const FlatRange range = buffers.optimizer_range(first);
          EXPECT_EQ(buffers.Masters(first, range).data<float>()[0], Fraction(range.begin) - 3);
          EXPECT_EQ(outer.Global(first, range).data<float>()[0], Fraction(range.begin) + 5);
          return world.status();
        });
    EXPECT_THAT(status, IsOk());
  }
}

// 0.15 is 0.125 in four bits, and 0.375 is exactly halfway from 0.25 to 0.5. Eight bits have a
// scale for the one number, and lose its last bits only.
TEST(OuterOptimizerTest, CodesAreRoundedOnceByEachIslandAndSummedInFp32) {
  const std::vector<std::vector<float>> results = {{0.85f, 0.625f}};
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kE3M0}, results).weights,
             {1 - (0.125 + 0.5) / 2});
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kInt8}, results).weights,
             {1 - (0.15 + 0.375) / 2});
  // One island sends nothing, and rounds nothing.
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kE3M0}, {{0.85f}}).weights, {0.85});
}

// Two islands of one rank each. Their gradients have the norms 4 and 2.
TEST(OuterOptimizerTest, AnIslandClipsByItsOwnNormAndSkipsStepsWithTheOthers) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ParallelSizes sizes;
    sizes.data = sizes.optimizer_instances = 2;
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups island, GroupsOfIsland(groups, false));
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    OptimizerOptions sgd;
    sgd.kind = OptimizerOptions::kSgd;
    sgd.sgd_momentum = 0;
    TestModel model(sgd);
    const Parameter* const number = model.Add("number", Replicated({1}));
    model.Build();
    float* const weight = number->data.data<float>();
    float* const gradient = number->grad.data<float>();
    StepOptions options;
    options.lr = 1;
    options.clip_grad = 3;
    options.islands = &groups.data_context_replicas;
    *weight = 0;
    *gradient = rank == 0 ? 4.0f : 2.0f;
    options.stop_requested = rank == 1;
    MEGATRON_ASSIGN_OR_RETURN(StepResult result, model.optimizer->Step(options, island, stream));
    EXPECT_TRUE(result.applied);
    EXPECT_TRUE(result.stop_requested);
    EXPECT_FALSE(result.log_requested);
    EXPECT_NEAR(result.grad_norm, std::sqrt((16.0 + 4) / 2), 1e-6);
    EXPECT_NEAR(*weight, rank == 0 ? -3 : -2, 1e-5);
    // An island with a gradient that is not finite holds back the other.
    if (rank == 1) *gradient = std::numeric_limits<float>::infinity();
    const float before = *weight;
    MEGATRON_ASSIGN_OR_RETURN(result, model.optimizer->Step(options, island, stream));
    EXPECT_FALSE(result.finite);
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(*weight, before);
    EXPECT_EQ(model.optimizer->applied_steps(), 1);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace megatron
