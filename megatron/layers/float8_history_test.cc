#include "megatron/layers/float8_history.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using Values = std::vector<float>;

class Float8HistoryTest : public ::testing::Test {
 protected:
  // A step in which the first layer's operands have these largest magnitudes.
  void Step(Float8History* history, const Values& seen, bool applied = true) {
    history->StartStep(stream_);
    for (size_t i = 0; i < seen.size(); ++i) history->layer(0).seen_3.data<float>()[i] = seen[i];
    history->StartReduce({}, stream_);
    if (applied) history->Record(stream_);
  }
  static Values Amax(const Float8History& history, int64_t layer = 0) {
    const float* const amax = history.layer(layer).amax_3.data<float>();
    return {amax, amax + 3};
  }
  static Float8History Make(const Float8HistoryOptions& options) {
    Float8History history(options);
    EXPECT_EQ(history.Add("a.weight"), 0);
    EXPECT_EQ(history.Add("b.weight"), 1);
    history.Allocate(Device(), nullptr);
    return history;
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(Float8HistoryTest, KnowsNothingBeforeTheFirstStep) {
  Float8History history = Make({});
  EXPECT_FALSE(history.known());
  Step(&history, {1, 2, 3});
  EXPECT_TRUE(history.known());
  EXPECT_EQ(Amax(history), (Values{1, 2, 3}));
  EXPECT_EQ(Amax(history, 1), (Values{0, 0, 0}));
  EXPECT_TRUE(Float8History().empty());
}

TEST_F(Float8HistoryTest, TheLastStepCountsOrTheLargestOfAllThatAreRemembered) {
  Float8History last = Make({3, /*most_recent=*/true, 0}), largest = Make({3, false, 0});
  const std::vector<Values> steps = {{9, 1, 5}, {2, 4, 4}, {3, 3, 3}, {1, 2, 1}};
  const std::vector<Values> want = {{9, 1, 5}, {9, 4, 5}, {9, 4, 5}, {3, 4, 4}};
  for (size_t i = 0; i < steps.size(); ++i) {
    Step(&last, steps[i]);
    Step(&largest, steps[i]);
    EXPECT_EQ(Amax(last), steps[i]) << i;
    EXPECT_EQ(Amax(largest), want[i]) << i;
  }
}

TEST_F(Float8HistoryTest, TheMarginIsAPowerOfTwo) {
  Float8History history = Make({1, true, 3});
  Step(&history, {1, 0.5f, std::numeric_limits<float>::max()});
  EXPECT_EQ(Amax(history), (Values{8, 4, std::numeric_limits<float>::max()}));
}

TEST_F(Float8HistoryTest, StepsThatWereNotAppliedAndMagnitudesThatAreNoneChangeNothing) {
  Float8History history = Make({2, true, 0});
  Step(&history, {1, 2, 3});
  Step(&history, {7, 7, 7}, /*applied=*/false);
  EXPECT_EQ(Amax(history), (Values{1, 2, 3}));
  Step(&history, {0, std::numeric_limits<float>::infinity(), 4});
  EXPECT_EQ(Amax(history), (Values{1, 2, 4}));
}

TEST_F(Float8HistoryTest, AWeightsMagnitudeMayComeFromElsewhere) {
  Float8History history = Make({});
  EXPECT_TRUE(history.AmaxOfWeight("a.weight").empty());
  history.StartStep(stream_);
  for (int i = 0; i < 3; ++i) history.layer(0).seen_3.data<float>()[i] = 4;
  history.StartReduce({}, stream_);
  history.Record(stream_, {{"a.weight", {7}}, {"c.weight", {9}}});
  EXPECT_EQ(Amax(history), (Values{4, 7, 4}));
  EXPECT_EQ(*history.AmaxOfWeight("a.weight").data<float>(), 7);
  EXPECT_TRUE(history.AmaxOfWeight("c.weight").empty());
}

// Each expert is a matrix.
TEST_F(Float8HistoryTest, MagnitudesOfSeveralMatricesMayComeFromElsewhere) {
  Float8History history{Float8HistoryOptions{}};
  EXPECT_EQ(history.Add("dense.weight"), 0);
  EXPECT_EQ(history.Add("experts.weight", 2), 1);
  history.Allocate({}, nullptr);
  history.StartStep(stream_);
  for (int layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 3; ++i) history.layer(layer).seen_3.data<float>()[i] = 4;
  }
  history.StartReduce({}, stream_);
  history.Record(stream_, {{"experts.weight", {7, 8}}});
  const Tensor amax = history.AmaxOfWeight("experts.weight");
  EXPECT_EQ(amax.shape(), (Shape{2}));
  EXPECT_EQ(*amax.Select(0, 0).data<float>(), 7);
  EXPECT_EQ(*amax.Select(0, 1).data<float>(), 8);
  EXPECT_EQ(*history.AmaxOfWeight("dense.weight").data<float>(), 4);
}

TEST_F(Float8HistoryTest, WhatWasSavedGoesOnWithTheSameScales) {
  Float8History history = Make({3, false, 1}), other = Make({3, false, 1});
  EXPECT_EQ(history.Tensors()[1].name, "b.weight");
  Step(&history, {9, 1, 5});
  Step(&history, {2, 4, 4});
  for (size_t i = 0; i < 2; ++i) {
    const Tensor from = history.Tensors()[i].tensor, to = other.Tensors()[i].tensor;
    EXPECT_EQ(from.shape(), (Shape{3, 3}));
    std::copy_n(from.data<float>(), 9, to.data<float>());
  }
  other.Restored(stream_);
  EXPECT_TRUE(other.known());
  EXPECT_EQ(Amax(other), Amax(history));
  for (Float8History* both : {&history, &other}) {
    Step(both, {1, 1, 1});
    Step(both, {2, 2, 2});
  }
  EXPECT_EQ(Amax(other), (Values{4, 8, 8}));
  EXPECT_EQ(Amax(other), Amax(history));
}

TEST_F(Float8HistoryTest, RanksTakeTheLargestOfAll) {
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                ThreadPool pool(1);
                const Stream stream = Stream::Cpu(&pool);
                Float8History history = Make({});
                history.StartStep(stream);
                float* const seen = history.layer(1).seen_3.data<float>();
                seen[0] = static_cast<float>(rank + 1);
                seen[2] = static_cast<float>(5 - rank);
                history.StartReduce({world}, stream);
                history.Record(stream);
                EXPECT_EQ(Amax(history, 1), (Values{2, 0, 5}));
                return world.status();
              }).ok());
}

}  // namespace
}  // namespace megatron
