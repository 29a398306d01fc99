// The optimizer on several ranks: sums over ranks, elements that count once, common decisions.
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;

absl::StatusOr<ProcessGroups> GroupsOf(const ParallelSizes& sizes, const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  return MakeGroups(dense, expert, world.communicator());
}

// The parameters of one rank of a layout: a matrix cut by rows, a norm weight with partial
// gradients and a bias that all tensor ranks have. Gradients are those of data-parallel rank
// `data`.
struct Shard {
  Shard(int tensor, int tensor_size, const ParameterBuffersOptions& buffers = {},
        std::unique_ptr<UpdateRule> rule = nullptr)
      : model({}, buffers.model_dtype) {
    model.buffer_options = buffers;
    model.rule = std::move(rule);
    matrix = model.Add("matrix", SplitOverTensor({8, 5}, 0, tensor_size, tensor));
    matrix->matrix = MatrixDims();
    norm = model.Add("norm", Replicated({6}, {Axis::kTensor}), /*decays=*/false);
    bias = model.Add("bias", Replicated({5}), /*decays=*/false);
    model.Build();
  }

  void FillGradients(int step, int tensor, int tensor_size, int data, int data_size) {
    const int64_t first = tensor * matrix->grad.numel();
    for (int64_t i = 0; i < matrix->grad.numel(); ++i) {
      matrix->grad.data<float>()[i] = Fraction(first + i + step) * (data + 1);
    }
    // Tensor rank t has every tensor_size-th summand; data rank d has d + 1 times it.
    for (int64_t i = 0; i < 6; ++i) {
      norm->grad.data<float>()[i] = 0;
      for (int summand = tensor; summand < 4; summand += tensor_size) {
        norm->grad.data<float>()[i] += Fraction(i + summand * 3 + step) * (data + 1);
      }
    }
    for (int64_t i = 0; i < 5; ++i) bias->grad.data<float>()[i] = Fraction(i * step) * (data + 1);
    if (data_size > 1) return;
    // Without data parallelism the gradients are the sums of those of data ranks 0 and 1.
    for (const auto& parameter : model.parameters) {
      for (int64_t i = 0; i < parameter->grad.numel(); ++i) parameter->grad.data<float>()[i] *= 3;
    }
  }

  TestModel model;
  Parameter *matrix, *norm, *bias;
};

struct Outcome {
  std::vector<double> grad_norms;
  double parameters_norm = 0;
  int64_t zeros = 0;
  std::vector<float> matrix, norm, bias;
};

constexpr int kLayoutSteps = 4;

std::vector<float> Values(const Tensor& tensor) {
  if (tensor.dtype() == DType::kFloat32) return Floats(tensor);
  std::vector<float> values;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    values.push_back(ToFloat(tensor.data<BFloat16>()[i]));
  return values;
}

using MakeRule = std::unique_ptr<UpdateRule> (*)();

template <OptimizerOptions::Kind kind>
std::unique_ptr<UpdateRule> RuleOf() {
  OptimizerOptions options;
  options.kind = kind;
  options.muon.tensor_mode = MuonTensorMode::kDistributed;
  options.muon.product_dtype = DType::kFloat32;
  return MakeUpdateRule(options);
}

std::unique_ptr<UpdateRule> WholeParameterRule() { return std::make_unique<NormedMomentumRule>(); }

constexpr MakeRule kRules[] = {RuleOf<OptimizerOptions::kAdamW>, RuleOf<OptimizerOptions::kSgd>,
                               RuleOf<OptimizerOptions::kLion>, RuleOf<OptimizerOptions::kMuon>,
                               RuleOf<OptimizerOptions::kLamb>};

absl::StatusOr<Outcome> Train(const ProcessGroup& world, int tensor_size, MakeRule make_rule,
                              ParameterBuffersOptions buffers = {}) {
  ParallelSizes sizes;
  sizes.tensor = tensor_size;
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));

  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const int tensor = groups.tensor.rank(), data = groups.data.rank();
  buffers.data = {groups.data.size(), data};
  Shard shard(tensor, tensor_size, buffers, make_rule());
  shard.model.buffers->InitializeWeights(9, stream);
  shard.model.Connect(groups, stream);
  Outcome outcome;
  for (int step = 0; step < kLayoutSteps; ++step) {
    shard.model.parallel->StartStep(1);
    shard.FillGradients(step, tensor, tensor_size, data, groups.data.size());
    StepOptions options;
    options.lr = 1e-2;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    MEGATRON_ASSIGN_OR_RETURN(const StepResult result, shard.model.Step(options, groups, stream));
    outcome.grad_norms.push_back(result.grad_norm);
  }
  outcome.zeros = shard.model.optimizer->CountZeroGradients(groups, stream);
  outcome.parameters_norm = shard.model.optimizer->ParametersNorm(groups, stream);
  outcome.matrix = Values(shard.matrix->data);
  outcome.norm = Values(shard.norm->data);
  outcome.bias = Values(shard.bias->data);
  return outcome;
}

void ExpectClose(const std::vector<float>& actual, absl::Span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

void ExpectTheSameOnEveryLayout(MakeRule make_rule,
                                const std::vector<std::pair<int, int>>& layouts) {
  const absl::StatusOr<Outcome> serial = Train(ProcessGroup(), 1, make_rule);
  ASSERT_THAT(serial, IsOk());
  for (auto [world_size, tensor_size] : layouts) {
    SCOPED_TRACE(testing::Message() << "tensor " << tensor_size << " of " << world_size);
    std::vector<Outcome> outcomes(world_size);
    const int size = tensor_size;
    ASSERT_THAT(RunRanks(world_size,
                         [&](int rank, const ProcessGroup& world) -> absl::Status {
                           absl::StatusOr<Outcome> outcome = Train(world, size, make_rule);
                           if (outcome.ok()) outcomes[rank] = *outcome;
                           return outcome.status();
                         }),
                IsOk());
    for (int rank = 0; rank < world_size; ++rank) {
      const Outcome& outcome = outcomes[rank];
      for (int step = 0; step < kLayoutSteps; ++step) {
        EXPECT_NEAR(outcome.grad_norms[step], serial->grad_norms[step],
                    1e-6 * serial->grad_norms[step]);
        EXPECT_EQ(outcome.grad_norms[step], outcomes[0].grad_norms[step]);
      }
      EXPECT_EQ(outcome.zeros, serial->zeros);
      EXPECT_NEAR(outcome.parameters_norm, serial->parameters_norm, 1e-6);
      const size_t rows = outcome.matrix.size();
      ExpectClose(outcome.matrix,
                  absl::MakeConstSpan(serial->matrix).subspan((rank % tensor_size) * rows, rows));
      ExpectClose(outcome.norm, serial->norm);
      ExpectClose(outcome.bias, serial->bias);
    }
  }
}

TEST(OptimizerRanksTest, EveryLayoutTrainsTheSameWeights) {
  for (MakeRule make_rule : kRules) {
    SCOPED_TRACE(make_rule()->name());
    ExpectTheSameOnEveryLayout(make_rule, {{2, 2}, {2, 1}, {4, 2}});
  }
  // The tests' rule for whole parameters does not sum its norms over tensor-parallel ranks.
  ExpectTheSameOnEveryLayout(WholeParameterRule, {{2, 1}});
}

void ExpectTheSameBitsOfShardedStates(MakeRule make_rule) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (auto [world_size, tensor_size] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 2}}) {
      SCOPED_TRACE(testing::Message() << "tensor " << tensor_size << " of " << world_size);
      const int size = tensor_size;
      ASSERT_THAT(RunRanks(world_size,
                           [&](int rank, const ProcessGroup& world) -> absl::Status {
                             ParameterBuffersOptions buffers;
                             buffers.model_dtype = dtype;
                             MEGATRON_ASSIGN_OR_RETURN(const Outcome whole,
                                                       Train(world, size, make_rule, buffers));
                             buffers.sharding = DataSharding::kStates;
                             MEGATRON_ASSIGN_OR_RETURN(const Outcome sharded,
                                                       Train(world, size, make_rule, buffers));
                             EXPECT_EQ(sharded.grad_norms, whole.grad_norms);
                             EXPECT_EQ(sharded.parameters_norm, whole.parameters_norm);
                             EXPECT_EQ(sharded.zeros, whole.zeros);
                             EXPECT_EQ(sharded.matrix, whole.matrix);
                             EXPECT_EQ(sharded.norm, whole.norm);
                             EXPECT_EQ(sharded.bias, whole.bias);
                             return absl::OkStatus();
                           }),
                  IsOk());
    }
  }
}

TEST(OptimizerRanksTest, ShardedStatesTrainTheSameBits) {
  for (MakeRule make_rule : kRules) {
    SCOPED_TRACE(make_rule()->name());
    ExpectTheSameBitsOfShardedStates(make_rule);
  }
  ExpectTheSameBitsOfShardedStates(WholeParameterRule);
}

TEST(OptimizerRanksTest, ExpertsAreSummedAndCountedInTheirOwnGrid) {
  // Four ranks: data 4 in the dense grid, expert 2 and data 2 in the expert grid.
  ParallelSizes sizes;
  sizes.expert = 2;
  EXPECT_THAT(RunRanks(4,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                                                   GroupsOf(sizes, world));
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         TestModel model;
                         Parameter* bias = model.Add("bias", Replicated({1}));
                         Parameter* experts = model.Add("experts", Replicated({2, 1}));
                         experts->sharding.expert_grid = true;
                         experts->sharding.sharded = {Axis::kExpert};
                         experts->sharding.local_shape = {1, 1};
                         experts->sharding.offset = {groups.expert.rank(), 0};
                         Parameter* router = model.Add("router", Replicated({1}, {Axis::kExpert}));
                         router->sharding.expert_grid = true;
                         model.buffer_options.data = {groups.data.size(), groups.data.rank()};
                         model.buffer_options.expert_data = {groups.expert_data.size(),
                                                             groups.expert_data.rank()};
                         model.Build();
                         model.Connect(groups, stream);
                         for (Parameter* p : {bias, experts, router}) *p->grad.data<float>() = 1;
                         model.parallel->FinalizeGradients();
                         EXPECT_EQ(*bias->grad.data<float>(), 4);
                         EXPECT_EQ(*experts->grad.data<float>(), 2);
                         EXPECT_EQ(*router->grad.data<float>(), 4);
                         MEGATRON_ASSIGN_OR_RETURN(const StepResult result,
                                                   model.optimizer->Step({}, groups, stream));
                         EXPECT_NEAR(result.grad_norm, std::sqrt(16 + 2 * 4 + 16), 1e-6);
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(OptimizerRanksTest, RanksDecideAlike) {
  // Rank 1 alone has a bad gradient in step 0 and wants to stop in step 1, rank 0 alone to log step
  // 2.
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.tensor = world;
                         Shard shard(rank, 2);
                         shard.FillGradients(1, rank, 2, 0, 1);
                         float* grad = shard.matrix->grad.data<float>();
                         const float good = grad[0];
                         if (rank == 1) grad[0] = std::numeric_limits<float>::infinity();
                         for (int step : {0, 1, 2}) {
                           StepOptions options;
                           options.stop_requested = step == 1 && rank == 1;
                           options.log_requested = step == 2 && rank == 0;
                           MEGATRON_ASSIGN_OR_RETURN(
                               const StepResult result,
                               shard.model.optimizer->Step(options, groups, stream));
                           EXPECT_EQ(result.applied, step > 0);
                           EXPECT_EQ(result.stop_requested, step == 1);
                           EXPECT_EQ(result.log_requested, step == 2);
                           grad[0] = good;
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(OptimizerRanksTest, CopiesOfTiedWeightsGetTheWeightsOfTheirOwners) {
  // Two stages; each has a part of the tied weight's gradient.
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.pipeline = groups.tied_embedding = world;
                         OptimizerOptions sgd;
                         sgd.kind = OptimizerOptions::kSgd;
                         sgd.sgd_momentum = 0;
                         TestModel model(sgd);
                         Parameter* tied = model.Add("tied", Replicated({2}));
                         tied->tied = true;
                         tied->owner = rank == 0;
                         model.Build();
                         model.Connect(groups, stream);
                         tied->grad.data<float>()[0] = rank == 0 ? 1 : 2;
                         tied->grad.data<float>()[1] = 4;
                         StepOptions options;
                         options.lr = 1;
                         MEGATRON_ASSIGN_OR_RETURN(const StepResult result,
                                                   model.Step(options, groups, stream));
                         EXPECT_NEAR(result.grad_norm, std::sqrt(9 + 64), 1e-6);
                         EXPECT_THAT(Floats(tied->data), ::testing::ElementsAre(-3, -8));
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(OptimizerRanksTest, AFailedCollectiveStopsTheStepBeforeItChangesAnything) {
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.tensor = world;
                         if (rank == 1) return absl::AbortedError("a peer gives up");
                         Shard shard(rank, 2);
                         shard.FillGradients(1, rank, 2, 0, 1);
                         StepOptions options;
                         options.lr = 1;
                         EXPECT_FALSE(shard.model.optimizer->Step(options, groups, stream).ok());
                         EXPECT_EQ(shard.model.optimizer->applied_steps(), 0);
                         EXPECT_THAT(Floats(shard.bias->data), Each(0.0f));
                         return absl::OkStatus();
                       }),
              StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace megatron
