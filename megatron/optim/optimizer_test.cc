#include "megatron/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

// The values of each optimizer state.
std::vector<std::vector<float>> States(const TestModel& model) {
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < model.buffers->num_states(); ++i)
    values.push_back(Floats(model.buffers->state(i)));
  return values;
}

StepResult Step(TestModel* model, const StepOptions& options, const Stream& stream) {
  absl::StatusOr<StepResult> result = model->optimizer->Step(options, {}, stream);
  EXPECT_THAT(result, IsOk());
  return *result;
}

// Values that tools/interop/pytorch_reference/optimizer_goldens.py prints.
struct Golden {
  std::vector<float> norms, weights;
};

void ExpectGolden(const OptimizerOptions& options, const Golden& golden) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model(options);
  Parameter* matrix = model.Add("matrix", Replicated({2, 3}));
  Parameter* vector = model.Add("vector", Replicated({3}), /*decays=*/false);
  model.Build();
  for (int i = 0; i < 9; ++i) {
    (i < 6 ? matrix->data.data<float>()[i] : vector->data.data<float>()[i - 6]) =
        static_cast<float>((i * 3) % 7 - 3) / 4;
  }
  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 9; ++i) {
      (i < 6 ? matrix->grad.data<float>()[i] : vector->grad.data<float>()[i - 6]) =
          static_cast<float>((i * 7 + step * 5) % 13 - 6) / 8;
    }
    StepOptions step_options;
    step_options.lr = 0.01;
    step_options.weight_decay = 0.1;
    step_options.clip_grad = 1;
    const StepResult result = Step(&model, step_options, stream);
    EXPECT_TRUE(result.applied);
    EXPECT_NEAR(result.grad_norm, golden.norms[step], 1e-6) << step;
  }
  for (int i = 0; i < 9; ++i) {
    const float weight = i < 6 ? matrix->data.data<float>()[i] : vector->data.data<float>()[i - 6];
    EXPECT_NEAR(weight, golden.weights[i], 1e-6) << i;
  }
}

const std::vector<float> kGoldenNorms = {1.36930645f, 1.41421354f, 1.5f,        1.34629118f,
                                         1.30503833f, 1.45773792f, 1.43614066f, 1.45773792f,
                                         1.30503821f, 1.3462913f};

TEST(OptimizerTest, AdamWDoesWhatPyTorchDoes) {
  OptimizerOptions options;
  options.adam_beta2 = 0.95;
  ExpectGolden(options, {kGoldenNorms,
                         {-0.715403199f, -0.0341086797f, 0.772670567f, -0.246833563f, 0.502050102f,
                          -0.497588664f, 0.277618378f, -0.775686264f, 0.0176526289f}});
}

// Each weight moves as one of an optimizer whose only rate is the weight's own.
TEST(OptimizerTest, TheEmbeddingAndTheOutputLayerMayHaveARateOfTheirOwn) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const auto train = [&](double lr, std::optional<double> decoupled_lr) {
    TestModel model;
    model.Add("table", Replicated({2, 3}))->is_embedding_or_output = true;
    model.Add("hidden", Replicated({3}));
    model.Build();
    StepOptions options;
    options.lr = lr;
    options.decoupled_lr = decoupled_lr;
    options.weight_decay = 0.1;
    std::vector<float> first;
    for (const auto& parameter : model.parameters) {
      FillGradients(*parameter, 1);
      std::fill_n(parameter->data.data<float>(), parameter->data.numel(), 0.5f);
    }
    EXPECT_TRUE(Step(&model, options, stream).applied);
    for (const auto& parameter : model.parameters)
      first.push_back(parameter->data.data<float>()[0]);
    return first;
  };
  const std::vector<float> slow = train(1e-2, std::nullopt), fast = train(3e-2, std::nullopt);
  EXPECT_NE(slow[0], fast[0]);
  EXPECT_EQ(train(1e-2, 3e-2), (std::vector<float>{fast[0], slow[1]}));
}

TEST(OptimizerTest, SgdWithMomentumDoesWhatPyTorchDoes) {
  OptimizerOptions options;
  options.kind = OptimizerOptions::kSgd;
  ExpectGolden(options, {kGoldenNorms,
                         {-0.69572711f, -0.0266349167f, 0.751506627f, -0.233654886f, 0.475068599f,
                          -0.471282631f, 0.270341098f, -0.778840542f, 0.0135354297f}});
}

TEST(OptimizerTest, SgdWithoutMomentumKeepsNoState) {
  ThreadPool pool(1);
  OptimizerOptions options;
  options.kind = OptimizerOptions::kSgd;
  options.sgd_momentum = 0;
  TestModel model(options);
  Parameter* weight = model.Add("weight", Replicated({3}));
  model.Build();
  EXPECT_EQ(model.buffers->num_states(), 0u);
  for (int i = 0; i < 3; ++i) weight->grad.data<float>()[i] = i;
  StepOptions step;
  step.lr = 0.5;
  Step(&model, step, Stream::Cpu(&pool));
  EXPECT_THAT(Floats(weight->data), ::testing::ElementsAre(0, -0.5f, -1));
}

// AdamW of one element in double precision, as ops/optimizer.h defines it.
struct NaiveAdamW {
  double w = 0, m = 0, v = 0;
  void Step(double g, double lr, double decay, int step) {
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    w -= lr * decay * w +
         lr * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.999, step))) + 1e-8);
  }
};

TEST(OptimizerTest, FollowsAComputationInDoubleForManySteps) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model;
  Parameter* matrix = model.Add("matrix", Replicated({41, 67}));
  Parameter* vector = model.Add("vector", Replicated({29}), /*decays=*/false);
  model.Build();
  model.buffers->InitializeWeights(11, stream);
  std::vector<NaiveAdamW> naive;
  for (float w : Floats(matrix->data)) naive.push_back({w});
  for (float w : Floats(vector->data)) naive.push_back({w});
  const int64_t cut = matrix->data.numel();
  for (int t = 1; t <= 200; ++t) {
    FillGradients(*matrix, t * 5);
    FillGradients(*vector, t * 5 + cut);
    double squares = 0;
    for (size_t i = 0; i < naive.size(); ++i) squares += std::pow(Fraction(t * 5 + i), 2);
    const double norm = std::sqrt(squares), lr = 1e-3 * t / 200;
    for (size_t i = 0; i < naive.size(); ++i) {
      const double grad = Fraction(t * 5 + i) * 1.5 / (norm + 1e-6);
      naive[i].Step(grad, lr, i < static_cast<size_t>(cut) ? 0.1 : 0, t);
    }
    StepOptions options;
    options.lr = lr;
    options.weight_decay = 0.1;
    options.clip_grad = 1.5;
    EXPECT_NEAR(Step(&model, options, stream).grad_norm, norm, 1e-6 * norm);
  }
  const std::vector<float> matrix_now = Floats(matrix->data), vector_now = Floats(vector->data);
  for (size_t i = 0; i < naive.size(); ++i) {
    const float now = i < matrix_now.size() ? matrix_now[i] : vector_now[i - cut];
    // The bound allows for 200 roundings of weights of about 1.
    ASSERT_NEAR(now, naive[i].w, 3e-6) << i;
  }
  EXPECT_EQ(model.optimizer->applied_steps(), 200);
}

TEST(OptimizerTest, LionFollowsAComputationInDoubleForManySteps) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  OptimizerOptions options;
  options.kind = OptimizerOptions::kLion;
  TestModel model(options, DType::kBFloat16);
  Parameter* weight = model.Add("weight", Replicated({41, 67}));
  model.Build();
  // One state of 4 bytes, where AdamW has two.
  EXPECT_EQ(model.ledger.AtPeak()["exp_avg"], model.ledger.AtPeak()["master weights"]);
  EXPECT_EQ(model.ledger.AtPeak().count("exp_avg_sq"), 0u);
  model.buffers->InitializeWeights(11, stream);
  std::vector<double> w, m(weight->grad.numel(), 0.0);
  for (float value : Floats(model.buffers->States()[0].master)) w.push_back(value);
  StepOptions step;
  step.lr = 1e-3;
  step.weight_decay = 0.1;
  for (int t = 1; t <= 50; ++t) {
    FillGradients(*weight, t * 5);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = Fraction(t * 5 + i), c = 0.9 * m[i] + 0.1 * g;
      // Rounding may turn the sign of a sum closer to zero than this.
      ASSERT_TRUE(c == 0 || std::fabs(c) > 1e-6);
      w[i] -= 1e-3 * (0.1 * w[i] + (c > 0 ? 1 : c < 0 ? -1 : 0));
      m[i] = 0.99 * m[i] + 0.01 * g;
    }
    Step(&model, step, stream);
  }
  const ParameterState state = model.buffers->States()[0];
  for (size_t i = 0; i < w.size(); ++i) {
    ASSERT_NEAR(state.master.data<float>()[i], w[i], 2e-6) << i;
    ASSERT_NEAR(state.states[0].data<float>()[i], m[i], 2e-6) << i;
  }
}

TEST(OptimizerTest, GradientsBelowTheLimitAreNotClipped) {
  ThreadPool pool(1);
  OptimizerOptions options;
  options.kind = OptimizerOptions::kSgd;
  options.sgd_momentum = 0;
  for (double clip : {0.0, 5.1, 2.5}) {
    TestModel model(options);
    Parameter* weight = model.Add("weight", Replicated({2}));
    model.Build();
    weight->grad.data<float>()[0] = 3;
    weight->grad.data<float>()[1] = 4;
    StepOptions step;
    step.lr = 1;
    step.clip_grad = clip;
    EXPECT_DOUBLE_EQ(Step(&model, step, Stream::Cpu(&pool)).grad_norm, 5);
    const double factor = clip == 2.5 ? 2.5 / (5 + 1e-6) : 1;
    EXPECT_FLOAT_EQ(weight->data.data<float>()[0], -3 * factor) << clip;
    EXPECT_FLOAT_EQ(weight->data.data<float>()[1], -4 * factor) << clip;
  }
}

TEST(OptimizerTest, ANonFiniteGradientChangesNothing) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // The last value is finite, but its square is not.
  for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    TestModel model;
    Parameter* weight = model.Add("weight", Replicated({100, 10}));
    model.Build();
    model.buffers->InitializeWeights(1, stream);
    StepOptions options;
    options.lr = 1e-2;
    options.clip_grad = 1;
    FillGradients(*weight, 3);
    EXPECT_TRUE(Step(&model, options, stream).applied);
    const std::vector<float> w = Floats(weight->data);
    const std::vector<std::vector<float>> states = States(model);
    weight->grad.data<float>()[777] = bad;
    const StepResult result = Step(&model, options, stream);
    EXPECT_FALSE(result.finite) << bad;
    EXPECT_FALSE(result.applied) << bad;
    EXPECT_EQ(Floats(weight->data), w);
    EXPECT_EQ(States(model), states);
    EXPECT_EQ(model.optimizer->applied_steps(), 1);
  }
}

TEST(OptimizerTest, AScaledLossGivesTheSameBits) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  std::vector<float> results[2];
  for (int scaled : {0, 1}) {
    TestModel model;
    Parameter* weight = model.Add("weight", Replicated({33, 5}));
    model.Build();
    model.buffers->InitializeWeights(1, stream);
    StepOptions options;
    options.lr = 1e-2;
    options.clip_grad = 1;
    if (scaled) options.loss_scale = 65536;
    for (int step = 0; step < 3; ++step) {
      FillGradients(*weight, step);
      for (int i = 0; i < weight->grad.numel(); ++i) {
        weight->grad.data<float>()[i] *= static_cast<float>(options.loss_scale);
      }
      Step(&model, options, stream);
    }
    results[scaled] = Floats(weight->data);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(OptimizerTest, BitsDoNotDependOnThreads) {
  std::vector<float> results[2];
  std::vector<double> norms[2];
  for (int run : {0, 1}) {
    ThreadPool pool(run == 0 ? 1 : 3);
    const Stream stream = Stream::Cpu(&pool);
    TestModel model;
    Parameter* weight = model.Add("weight", Replicated({257, 333}));
    Parameter* bias = model.Add("bias", Replicated({257}), /*decays=*/false);
    model.Build();
    model.buffers->InitializeWeights(1, stream);
    StepOptions options;
    options.lr = 1e-2;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    for (int step = 0; step < 3; ++step) {
      for (int64_t i = 0; i < weight->grad.numel(); ++i) {
        weight->grad.data<float>()[i] = std::sin(static_cast<float>(i + step));
      }
      FillGradients(*bias, step);
      norms[run].push_back(Step(&model, options, stream).grad_norm);
    }
    results[run] = Floats(model.buffers->weights());
    EXPECT_GT(model.optimizer->ParametersNorm({}, stream), 0);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(norms[0], norms[1]);
}

TEST(OptimizerTest, ASteadyStepAllocatesNothing) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model({}, DType::kBFloat16);
  model.Add("weight", Replicated({257, 33}));
  model.Add("bias", Replicated({257}), /*decays=*/false);
  model.Build();
  const ProcessGroups groups;
  model.Connect(groups, stream);
  StepOptions options;
  options.clip_grad = 1;
  int64_t allocations = 0;
  for (int step = 0; step < 3; ++step) {
    allocations = ops::AllocationCount();
    model.parallel->StartStep(1);
    const bool ok = model.Step(options, groups, stream).ok();
    allocations = ops::AllocationCount() - allocations;
    EXPECT_TRUE(ok);
  }
  EXPECT_EQ(allocations, 0);
}

TEST(OptimizerTest, MastersKeepUpdatesThatAreTooSmallForSixteenBits) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  OptimizerOptions options;
  options.kind = OptimizerOptions::kSgd;
  options.sgd_momentum = 0;
  TestModel model(options, DType::kBFloat16);
  Parameter* weight = model.Add("weight", Replicated({1}));
  weight->initializer = Initializer::Ones();
  model.Build();
  model.buffers->InitializeWeights(1, stream);
  weight->grad.data<float>()[0] = -1;
  StepOptions step;
  step.lr = 1.0 / 1024;  // bf16 holds nothing between 1 and 1 + 1/128
  for (int i = 0; i < 8; ++i) Step(&model, step, stream);
  EXPECT_EQ(model.buffers->States()[0].master.data<float>()[0], 1 + 8.0f / 1024);
  EXPECT_EQ(ToFloat(weight->data.data<BFloat16>()[0]), 1 + 1.0f / 128);
}

// The masters of weights and remainders are those of fp32 weights that began as rounded, to the
// bit: gradients do not depend on the weights here.
TEST(OptimizerTest, RemaindersKeepMastersBitForBit) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  OptimizerOptions options;
  TestModel whole(options);
  options.store_param_remainders = true;
  TestModel split(options, DType::kBFloat16);
  constexpr int64_t kElements = 5000;
  std::vector<Parameter*> weights;
  for (TestModel* model : {&whole, &split}) {
    weights.push_back(model->Add("w", Replicated({kElements})));
    weights.back()->initializer = Initializer::Ones();
    model->Build();
    model->buffers->InitializeWeights(1, stream);
  }
  EXPECT_FALSE(split.buffers->has_masters());
  EXPECT_EQ(split.ledger.AtPeak().count("master weights"), 0);
  const BFloat16* const rounded = weights[1]->data.data<BFloat16>();
  for (int64_t i = 0; i < kElements; ++i) weights[0]->data.data<float>()[i] = ToFloat(rounded[i]);
  StepOptions step;
  step.lr = 1e-4;  // far below what bf16 tells apart
  step.weight_decay = 0.1;
  for (int i = 0; i < 20; ++i) {
    for (size_t m = 0; m < 2; ++m) {
      FillGradients(*weights[m], i);
      Step(m == 0 ? &whole : &split, step, stream);
    }
  }
  std::vector<float> joined(kElements);
  const Tensor scratch(joined.data(), DType::kFloat32, {kElements});
  const FlatParameter& flat = split.buffers->parameters()[0];
  split.buffers->MastersOnDevice(split.buffers->bucket_of(flat), flat.range, scratch, stream);
  EXPECT_EQ(joined, Floats(weights[0]->data));
  int64_t moved = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(ToFloat(rounded[i]), joined[i], std::abs(joined[i]) / 256);
    moved += ToFloat(rounded[i]) != joined[i];
  }
  EXPECT_GT(moved, kElements / 2);
  EXPECT_EQ(split.optimizer->ParametersNorm({}, stream),
            whole.optimizer->ParametersNorm({}, stream));
}

TEST(OptimizerTest, ContinuesFromItsStateBitForBit) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  StepOptions options;
  options.lr = 1e-2;
  TestModel first, second;
  Parameter* weights[] = {first.Add("w", Replicated({7})), second.Add("w", Replicated({7}))};
  first.Build();
  second.Build();
  for (int step = 0; step < 3; ++step) {
    FillGradients(*weights[0], step);
    Step(&first, options, stream);
  }
  const ParameterState from = first.buffers->States()[0], to = second.buffers->States()[0];
  for (auto [source, target] : {std::pair(from.master, to.master),
                                {from.states[0], to.states[0]},
                                {from.states[1], to.states[1]}}) {
    std::copy_n(source.data<float>(), 7, target.data<float>());
  }
  second.optimizer->set_applied_steps(first.optimizer->applied_steps());
  for (int step = 3; step < 6; ++step) {
    for (TestModel* model : {&first, &second}) {
      FillGradients(*model->parameters[0], step);
      Step(model, options, stream);
    }
  }
  EXPECT_EQ(Floats(weights[0]->data), Floats(weights[1]->data));
}

TEST(OptimizerTest, CountsZerosInGradientsButNotBetweenThem) {
  ThreadPool pool(2);
  TestModel model;
  Parameter* a = model.Add("a", Replicated({70}));
  Parameter* b = model.Add("b", Replicated({3}));
  model.Build();
  for (int i = 0; i < 70; ++i) a->grad.data<float>()[i] = i % 7;
  for (int i = 0; i < 3; ++i) b->grad.data<float>()[i] = -1;
  EXPECT_EQ(model.optimizer->CountZeroGradients({}, Stream::Cpu(&pool)), 10);
}

TEST(OptimizerTest, AStepOnTheMetaDeviceNeedsNoMemory) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestModel model({}, dtype);
    model.Add("weight", Replicated({1 << 20, 1 << 12}));  // 16 GiB each
    model.Build({DeviceType::kMeta, 0});
    const Stream stream = Stream::Meta();
    model.Connect({}, stream);
    model.parallel->StartStep(1);
    model.parallel->FinalizeGradients();
    EXPECT_TRUE(Step(&model, {}, stream).applied);
    EXPECT_GT(model.ledger.peak_bytes(), int64_t{64} << 30);
  }
}

}  // namespace
}  // namespace megatron
