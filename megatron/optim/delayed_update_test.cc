// Compares an optimizer whose updates come one step late with a plain program: an optimizer whose
// updates do not, and a queue of one gradient.
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int kSteps = 14, kOverflow = 8;  // the step whose gradients are not finite

class DelayedUpdateTest : public testing::Test {
 protected:
  DelayedUpdateTest() : pool_(2), stream_(Stream::Cpu(&pool_)) {}

  static void Build(TestModel* model) {
    model->Add("matrix", Replicated({8, 5}));
    model->Add("vector", Replicated({7}), /*decays=*/false);
    model->parameters.front()->is_embedding_or_output = true;
    for (const auto& parameter : model->parameters) parameter->has_scaled_lr = true;
    model->Build();
    model->buffers->InitializeWeights(/*seed=*/7, Stream::Inline());
  }

  static float WeightOf(const Parameter& parameter, int64_t i) {
    return parameter.data.dtype() == DType::kFloat32 ? parameter.data.data<float>()[i]
                                                     : ToFloat(parameter.data.data<BFloat16>()[i]);
  }

  // A schedule in which all numbers change from step to step, and one is not always there.
  static StepOptions OptionsOf(int step, int64_t prompt_updates) {
    StepOptions options;
    options.lr = 0.01 / step;
    if (step % 2 == 0) options.decoupled_lr = 0.02 / step;
    options.scaled_lr = 0.005 / step;
    options.weight_decay = 0.01 * step;
    options.loss_scale = std::ldexp(1.0, step % 4);
    options.clip_grad = step % 3 == 0 ? 0.0 : 1.0;
    options.prompt_updates = prompt_updates;
    return options;
  }

  // Gradients of a loss that depends on the step, at the model's weights.
  static std::vector<std::vector<float>> GradientsAt(const TestModel& model, int step) {
    std::vector<std::vector<float>> gradients;
    const float scale = std::ldexp(1.0f, step % 4);
    for (const auto& parameter : model.parameters) {
      std::vector<float>& mine = gradients.emplace_back();
      for (int64_t i = 0; i < parameter->data.numel(); ++i)
        mine.push_back(scale * (0.5f * WeightOf(*parameter, i) + Fraction(i + 5 * step)));
    }
    if (step == kOverflow) gradients[0][3] = std::numeric_limits<float>::infinity();
    return gradients;
  }

  static void SetGradients(const std::vector<std::vector<float>>& gradients, TestModel* model) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      std::memcpy(model->parameters[i]->grad.raw(), gradients[i].data(),
                  gradients[i].size() * sizeof(float));
    }
  }

  static std::string Bytes(const Tensor& tensor) {
    return tensor.empty() ? std::string()
                          : std::string(static_cast<const char*>(tensor.raw()),
                                        static_cast<size_t>(tensor.bytes()));
  }

  // Expects the same masters, weights and states.
  static void ExpectSame(const TestModel& late, const TestModel& plain) {
    EXPECT_EQ(Bytes(late.buffers->weights()), Bytes(plain.buffers->weights()));
    EXPECT_EQ(Bytes(late.buffers->masters()), Bytes(plain.buffers->masters()));
    for (size_t i = 0; i < plain.buffers->num_states(); ++i)
      EXPECT_EQ(Bytes(late.buffers->state(i)), Bytes(plain.buffers->state(i)));
  }

  StepResult Step(TestModel* model, const StepOptions& options) {
    absl::StatusOr<StepResult> result = model->optimizer->Step(options, {}, stream_);
    EXPECT_THAT(result, IsOk());
    return *result;
  }

  // Trains both, and returns the number of updates that have come late.
  int Compare(const OptimizerOptions& options, DType dtype, int64_t prompt_updates) {
    OptimizerOptions late_options = options;
    late_options.delayed_gradients = DType::kFloat32;
    TestModel late(late_options, dtype), plain(options, dtype);
    Build(&late);
    Build(&plain);
    ExpectSame(late, plain);
    struct Queued {
      std::vector<std::vector<float>> gradients;
      StepOptions options;
      double norm;
    };
    std::optional<Queued> queued;
    const auto apply = [&] {
      SetGradients(queued->gradients, &plain);
      EXPECT_EQ(Step(&plain, queued->options).grad_norm, queued->norm);
      queued.reset();
    };
    int updates = 0, came_late = 0;
    for (int step = 1; step <= kSteps; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      const StepOptions how = OptionsOf(step, prompt_updates);
      const auto gradients = GradientsAt(plain, step);
      SetGradients(GradientsAt(late, step), &late);
      const StepResult result = Step(&late, how);
      EXPECT_EQ(result.applied, step != kOverflow);
      bool changed = queued.has_value();
      if (queued.has_value()) {
        ++came_late;
        apply();
      }
      if (step != kOverflow) {
        queued = Queued{gradients, how, result.grad_norm};
        if (++updates <= prompt_updates) {
          changed = true;
          apply();
        }
      }
      EXPECT_EQ(result.weights_changed, changed);
      EXPECT_EQ(late.optimizer->pending().exists, queued.has_value());
      EXPECT_EQ(late.optimizer->applied_steps(), updates);
      ExpectSame(late, plain);
    }
    return came_late;
  }

  ThreadPool pool_;
  const Stream stream_;
};

TEST_F(DelayedUpdateTest, EveryRuleIsThePlainProgram) {
  for (const auto kind :
       {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(absl::StrCat("optimizer ", kind, ", ", SizeOf(dtype), " bytes"));
      OptimizerOptions options;
      options.kind = kind;
      EXPECT_EQ(Compare(options, dtype, /*prompt_updates=*/0), kSteps - 2);
      EXPECT_EQ(Compare(options, dtype, /*prompt_updates=*/5), kSteps - 2 - 5);
    }
  }
}

TEST_F(DelayedUpdateTest, MastersAsRemaindersAndMomentsInFewerBits) {
  OptimizerOptions options;
  options.store_param_remainders = true;
  options.exp_avg_dtype = options.exp_avg_sq_dtype = DType::kBFloat16;
  EXPECT_EQ(Compare(options, DType::kBFloat16, /*prompt_updates=*/3), kSteps - 2 - 3);
}

TEST_F(DelayedUpdateTest, AllFirstUpdatesMayBePrompt) {
  EXPECT_EQ(Compare({}, DType::kFloat32, /*prompt_updates=*/100), 0);
}

}  // namespace
}  // namespace megatron
