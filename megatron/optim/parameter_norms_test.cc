#include "megatron/optim/parameter_norms.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr float kLossScale = 4;

double SquareNorm(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

// A matrix cut over tensor ranks in group 0; a vector of which all have a copy, and another matrix,
// in group 1.
struct Rank {
  Rank(const ProcessGroups& groups, DataSharding sharding, std::unique_ptr<UpdateRule> rule) {
    const int tensor = groups.tensor.rank(), size = groups.tensor.size();
    model.rule = std::move(rule);
    model.buffer_options.sharding = sharding;
    model.buffer_options.data = {groups.data_context_shards.size(),
                                 groups.data_context_shards.rank()};
    matrix = model.Add("layers.0.matrix", SplitOverTensor({8, 5}, 0, size, tensor));
    vector = model.Add("layers.1.vector", Replicated({6}), /*decays=*/false);
    other = model.Add("layers.1.matrix", SplitOverTensor({4, 300}, 0, size, tensor));
    model.Build();
    for (const FlatParameter& flat : model.buffers->parameters())
      group_of.push_back(flat.parameter == matrix ? 0 : 1);
  }

  TestModel model;
  Parameter *matrix, *vector, *other;
  std::vector<int> group_of;
};

using Sums = std::vector<float>;  // [2 groups, 3 kinds, 2]

absl::StatusOr<Sums> Measure(const ProcessGroup& world, int tensor_size, DataSharding sharding,
                             std::unique_ptr<UpdateRule> rule) {
  ParallelSizes sizes;
  sizes.tensor = tensor_size;
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(dense, expert, world.communicator()));
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Rank rank(groups, sharding, std::move(rule));
  rank.model.buffers->InitializeWeights(9, stream);
  rank.model.Connect(groups, stream);
  const Buffer memory({}, 12 * sizeof(float), "sums", nullptr);
  const Tensor sums = memory.At(0, DType::kFloat32, {2, ParameterNorms::kNumKinds, 2});
  ops::Zero(stream, sums);
  ParameterNorms norms(*rank.model.buffers, groups, rank.group_of, sums, nullptr);

  rank.model.parallel->StartStep(1);
  // Data ranks have equal parts of the gradient.
  for (Parameter* parameter : {rank.matrix, rank.vector, rank.other}) {
    const bool cut = parameter != rank.vector;
    FillGradients(*parameter, cut ? groups.tensor.rank() * parameter->grad.numel() : 0);
    ops::Scale(stream, kLossScale / static_cast<float>(groups.data.size()), parameter->grad);
  }
  rank.model.parallel->FinalizeGradients();
  norms.AddGradients(1 / kLossScale, stream);
  StepOptions options;
  options.lr = 1e-2;
  options.loss_scale = kLossScale;
  options.observer = &norms;
  MEGATRON_RETURN_IF_ERROR(rank.model.optimizer->Step(options, groups, stream).status());
  norms.AddWeights(stream);
  groups.world.AllReduce(sums, ReduceOp::kSum, stream);
  MEGATRON_RETURN_IF_ERROR(world.status());
  return Floats(sums.View({12}));
}

std::unique_ptr<UpdateRule> AdamW() { return MakeUpdateRule({}); }
std::unique_ptr<UpdateRule> WholeParameters() { return std::make_unique<NormedMomentumRule>(); }

TEST(ParameterNormsTest, EqualAPlainComputation) {
  for (const auto make_rule : {AdamW, WholeParameters}) {
    const absl::StatusOr<Sums> sums = Measure(ProcessGroup(), 1, DataSharding::kNone, make_rule());
    ASSERT_THAT(sums, IsOk());
    // The same step without being observed.
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    Rank rank(ProcessGroups(), DataSharding::kNone, make_rule());
    rank.model.buffers->InitializeWeights(9, stream);
    double gradients[2] = {}, weights[2] = {}, updates[2] = {};
    std::vector<std::vector<float>> before;
    const std::vector<Parameter*> parameters = {rank.matrix, rank.vector, rank.other};
    for (Parameter* parameter : parameters) {
      FillGradients(*parameter, 0);
      before.push_back(Floats(parameter->data));
      gradients[parameter == rank.matrix ? 0 : 1] += SquareNorm(Floats(parameter->grad));
    }
    StepOptions options;
    options.lr = 1e-2;
    ASSERT_THAT(rank.model.optimizer->Step(options, ProcessGroups(), stream), IsOk());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<float> after = Floats(parameters[i]->data);
      std::vector<float> change = after;
      for (size_t j = 0; j < change.size(); ++j) change[j] -= before[i][j];
      weights[i == 0 ? 0 : 1] += SquareNorm(after);
      updates[i == 0 ? 0 : 1] += SquareNorm(change);
    }
    for (int group = 0; group < 2; ++group) {
      const float* const sum = sums->data() + group * 6;
      EXPECT_NEAR(sum[0], gradients[group], 1e-6 * gradients[group]);
      EXPECT_NEAR(sum[2], weights[group], 1e-6 * weights[group]);
      EXPECT_NEAR(sum[4], updates[group], 1e-5 * updates[group]);
      EXPECT_GT(updates[group], 0);
      for (int kind = 0; kind < 3; ++kind) EXPECT_EQ(sum[2 * kind + 1], 0);
    }
  }
}

TEST(ParameterNormsTest, AreTheSameOnEveryLayout) {
  const absl::StatusOr<Sums> serial = Measure(ProcessGroup(), 1, DataSharding::kNone, AdamW());
  ASSERT_THAT(serial, IsOk());
  struct Case {
    int ranks, tensor;
    DataSharding sharding;
  };
  for (const Case& layout : {Case{2, 2, DataSharding::kNone}, Case{2, 1, DataSharding::kNone},
                             Case{2, 1, DataSharding::kStates}, Case{3, 1, DataSharding::kStates},
                             Case{4, 2, DataSharding::kStates}}) {
    SCOPED_TRACE(testing::Message() << layout.ranks << " ranks, tensor " << layout.tensor);
    std::vector<Sums> sums(layout.ranks);
    ASSERT_THAT(RunRanks(layout.ranks,
                         [&](int rank, const ProcessGroup& world) -> absl::Status {
                           MEGATRON_ASSIGN_OR_RETURN(
                               sums[rank], Measure(world, layout.tensor, layout.sharding, AdamW()));
                           return absl::OkStatus();
                         }),
                IsOk());
    for (const Sums& mine : sums) {
      EXPECT_EQ(mine, sums[0]);
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_NEAR(mine[i], (*serial)[i], 1e-5 * (*serial)[i]) << i;
    }
  }
}

// The first parameter is updated in several parts.
TEST(ParameterNormsTest, AnObservedUpdateHasTheSameBits) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  std::vector<float> weights[2];
  for (const bool observed : {false, true}) {
    TestModel model;
    Parameter* const large = model.Add("large", Replicated({UpdateObserver::kMostElements + 77}));
    model.Add("small", Replicated({5}), /*decays=*/false);
    model.Build();
    model.buffers->InitializeWeights(3, stream);
    FillGradients(*large, 0);
    const Buffer memory({}, 6 * sizeof(float), "sums", nullptr);
    const Tensor sums = memory.At(0, DType::kFloat32, {1, ParameterNorms::kNumKinds, 2});
    ops::Zero(stream, sums);
    ParameterNorms norms(*model.buffers, ProcessGroups(), {0, 0}, sums, nullptr);
    StepOptions options;
    options.lr = 1e-2;
    options.weight_decay = 0.1;
    if (observed) options.observer = &norms;
    for (int step = 0; step < 3; ++step)
      ASSERT_THAT(model.optimizer->Step(options, ProcessGroups(), stream), IsOk());
    weights[observed] = Floats(model.buffers->weights());
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(ParameterNormsTest, GradientsThatAreNotFiniteAreMarked) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Rank rank(ProcessGroups(), DataSharding::kNone, AdamW());
  rank.model.buffers->InitializeWeights(9, stream);
  rank.vector->grad.data<float>()[3] = std::numeric_limits<float>::infinity();
  const Buffer memory({}, 12 * sizeof(float), "sums", nullptr);
  const Tensor sums = memory.At(0, DType::kFloat32, {2, ParameterNorms::kNumKinds, 2});
  ops::Zero(stream, sums);
  const ParameterNorms norms(*rank.model.buffers, ProcessGroups(), rank.group_of, sums, nullptr);
  norms.AddGradients(1, stream);
  EXPECT_EQ(sums.data<float>()[1], 0);
  EXPECT_EQ(sums.data<float>()[6 + 1], 1);
}

}  // namespace
}  // namespace megatron
