#include "megatron/optim/gradient_parts.h"

#include <memory>
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

double SquareNorm(const Tensor& x) {
  double sum = 0;
  for (const float value : Floats(x)) sum += static_cast<double>(value) * value;
  return sum;
}

// Sums of parts and of the whole, without the marks of values that are not finite.
struct Sums {
  Sums() : memory({}, 4 * sizeof(float), "sums", nullptr) {
    for (int i = 0; i < 4; ++i) tensor().data<float>()[i] = 0;
  }
  Tensor tensor() const { return memory.At(0, DType::kFloat32, {2, 2}); }
  float parts() const { return tensor().data<float>()[0]; }
  float whole() const { return tensor().data<float>()[2]; }
  Buffer memory;
};

TEST(GradientPartsTest, OnOneRankThePartIsTheFirstHalfOfTheMicroBatches) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model;
  Parameter* const a = model.Add("a", Replicated({5}));
  Parameter* const b = model.Add("b", Replicated({7}));
  b->block = 1;
  model.Build();
  model.Connect(ProcessGroups(), stream);
  const Sums sums;
  GradientParts parts(*model.buffers, ProcessGroups(), sums.tensor());
  model.parallel->set_parts(&parts);
  constexpr int kMicroBatches = 5;
  parts.StartStep(kMicroBatches, /*scale=*/0.5f, /*in_order=*/true);
  ASSERT_TRUE(parts.has_parts());
  EXPECT_EQ(parts.part_share(), 2.0 / 5);
  EXPECT_DOUBLE_EQ(parts.part_factor(), 25.0 / 4);
  model.parallel->StartStep(kMicroBatches);
  double want = 0;
  for (int i = 0; i < kMicroBatches; ++i) {
    for (Parameter* parameter : {b, a}) {
      for (int64_t j = 0; j < parameter->grad.numel(); ++j)
        parameter->grad.data<float>()[j] += Fraction(i * 11 + j);
      if (i == 1) want += SquareNorm(parameter->grad) / 4;
      model.parallel->EndGradients(parameter->block);
    }
  }
  model.parallel->FinalizeGradients();
  parts.AddWhole(Tensor(), stream);
  EXPECT_GT(want, 0);
  EXPECT_NEAR(sums.parts(), want, 1e-5 * want);
  const double whole = (SquareNorm(a->grad) + SquareNorm(b->grad)) / 4;
  EXPECT_NEAR(sums.whole(), whole, 1e-5 * whole);
}

TEST(GradientPartsTest, AStepOfOneMicroBatchOrInAnotherOrderHasNoParts) {
  TestModel model;
  model.Add("a", Replicated({5}));
  model.Build();
  const Sums sums;
  GradientParts parts(*model.buffers, ProcessGroups(), sums.tensor());
  parts.StartStep(1, 1, /*in_order=*/true);
  EXPECT_FALSE(parts.has_parts());
  parts.StartStep(4, 1, /*in_order=*/false);
  EXPECT_FALSE(parts.has_parts());
  parts.StartStep(4, 1, /*in_order=*/true);
  EXPECT_TRUE(parts.has_parts());
  parts.FinishStep();
  EXPECT_FALSE(parts.has_parts());
}

// Each of three ranks has gradients of its own.
absl::Status CheckRank(int rank, const ProcessGroup& world, DataSharding sharding) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create({}, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert({}, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(dense, expert, world.communicator()));
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model;
  model.buffer_options.sharding = sharding;
  model.buffer_options.data = {world.size(), rank};
  Parameter* const a = model.Add("a", Replicated({50}));
  model.Build();
  model.Connect(groups, stream);
  const Sums sums;
  GradientParts parts(*model.buffers, groups, sums.tensor());
  model.parallel->set_parts(&parts);
  parts.StartStep(1, 1, /*in_order=*/true);
  model.parallel->StartStep(1);
  std::vector<double> whole(50);
  double each = 0;
  for (int of = 0; of < world.size(); ++of) {
    for (int64_t i = 0; i < 50; ++i) {
      const float value = Fraction(of * 17 + i);
      if (of == rank) a->grad.data<float>()[i] = value;
      each += static_cast<double>(value) * value;
      whole[i] += value;
    }
  }
  model.parallel->FinalizeGradients();
  parts.AddWhole(Tensor(), stream);
  groups.world.AllReduce(sums.tensor(), ReduceOp::kSum, stream);
  EXPECT_NEAR(sums.parts(), each, 1e-5 * each);
  double square = 0;
  for (const double value : whole) square += value * value;
  EXPECT_NEAR(sums.whole(), square, 1e-5 * square);
  EXPECT_NEAR(parts.part_share(), 1.0 / 3, 1e-12);
  EXPECT_EQ(parts.part_factor(), 3);
  return world.status();
}

TEST(GradientPartsTest, OnSeveralRanksThePartsAreTheirGradientsBeforeTheyAreReduced) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    EXPECT_THAT(
        RunRanks(3, [&](int rank,
                        const ProcessGroup& world) { return CheckRank(rank, world, sharding); }),
        IsOk());
  }
}

}  // namespace
}  // namespace megatron
