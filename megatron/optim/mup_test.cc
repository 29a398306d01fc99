#include "megatron/optim/mup.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/optim/lr_scheduler.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using Kind = OptimizerOptions::Kind;

Parameter Hidden() {
  Parameter parameter;
  parameter.initializer = Initializer::Normal(0.5f);
  parameter.matrix = MatrixDims();
  return parameter;
}

TEST(MupTest, HiddenWeightsStartSmallerAndOthersAsTheyAre) {
  Parameter hidden = Hidden(), table;
  table.initializer = Initializer::Normal(0.5f);
  for (Parameter* parameter : {&hidden, &table}) ApplyMup(Kind::kAdamW, 4, parameter);
  EXPECT_EQ(hidden.initializer.stddev, 0.25f);
  EXPECT_EQ(table.initializer.stddev, 0.5f);
}

TEST(MupTest, RatesAndEpsilonAreThoseOfTheOptimizer) {
  struct Case {
    Kind kind;
    bool hidden_scaled, table_scaled;
    float epsilon_factor;
    double lr_factor;
  };
  for (const Case& c : {Case{Kind::kAdamW, true, false, 0.25f, 0.25},
                        {Kind::kLion, true, false, 1, 0.25},
                        {Kind::kLamb, true, false, 1, 0.25},
                        {Kind::kSgd, false, true, 1, 4},
                        {Kind::kMuon, false, false, 1, 0.25}}) {
    SCOPED_TRACE(c.kind);
    Parameter hidden = Hidden(), table;
    for (Parameter* parameter : {&hidden, &table}) ApplyMup(c.kind, 4, parameter);
    EXPECT_EQ(hidden.has_scaled_lr, c.hidden_scaled);
    EXPECT_EQ(table.has_scaled_lr, c.table_scaled);
    EXPECT_EQ(hidden.epsilon_factor, c.epsilon_factor);
    EXPECT_EQ(table.epsilon_factor, 1);
    EXPECT_EQ(MupLrFactor(c.kind, 4), c.lr_factor);
  }
}

// As in Megatron, the rate at the begin of the warm-up is not scaled.
TEST(MupTest, TheScaledRateHasScaledEnds) {
  OptimizerParamSchedule schedule;
  schedule.max_lr = 8;
  schedule.min_lr = 2;
  schedule.init_lr = 1;
  schedule.lr_warmup_steps = 10;
  schedule.lr_decay_steps = 30;
  schedule.scaled_lr_factor = 0.25;
  EXPECT_EQ(ScaledLearningRate(schedule, 0), 1);
  EXPECT_EQ(ScaledLearningRate(schedule, 10), 2);
  EXPECT_EQ(ScaledLearningRate(schedule, 20), 1.25);
  EXPECT_EQ(ScaledLearningRate(schedule, 31), 0.5);
}

// Each weight moves as one of an optimizer whose only rate and epsilon are the weight's own.
TEST(MupTest, AWeightMovesByItsOwnRateAndEpsilon) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const auto train = [&](double lr, double epsilon, double width_mult) {
    OptimizerOptions options;
    options.adam_epsilon = epsilon;
    TestModel model(options);
    model.Add("table", Replicated({2, 3}))->is_embedding_or_output = true;
    model.Add("hidden", Replicated({4, 3}))->matrix = MatrixDims();
    for (const auto& parameter : model.parameters)
      ApplyMup(options.kind, width_mult, parameter.get());
    model.Build();
    StepOptions step;
    step.lr = lr;
    step.scaled_lr = lr * MupLrFactor(options.kind, width_mult);
    std::vector<float> first;
    for (const auto& parameter : model.parameters) {
      FillGradients(*parameter, 1);
      std::fill_n(parameter->data.data<float>(), parameter->data.numel(), 0.5f);
    }
    const ProcessGroups groups;
    model.Connect(groups, stream);
    EXPECT_TRUE(model.Step(step, groups, stream)->applied);
    for (const auto& parameter : model.parameters)
      first.push_back(parameter->data.data<float>()[0]);
    return first;
  };
  const std::vector<float> wide = train(1e-2, 1e-1, 4), base = train(1e-2, 1e-1, 1),
                           scaled = train(2.5e-3, 2.5e-2, 1), slow = train(2.5e-3, 1e-1, 1);
  EXPECT_EQ(wide, (std::vector<float>{base[0], scaled[1]}));
  EXPECT_NE(scaled[1], slow[1]);
}

}  // namespace
}  // namespace megatron
