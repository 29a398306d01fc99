#include "megatron/tensor/parameter.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

std::vector<float> Initial(const Parameter& parameter, uint64_t seed) {
  std::vector<float> values(parameter.sharding.local_shape.numel());
  FillInitial(parameter, seed,
              Tensor(values.data(), DType::kFloat32, parameter.sharding.local_shape));
  return values;
}

Parameter Make(const std::string& name, const Sharding& sharding) {
  Parameter parameter;
  parameter.name = name;
  parameter.sharding = sharding;
  parameter.initializer = Initializer::Normal(0.02f);
  return parameter;
}

TEST(ParameterTest, EveryBlockHasTheValuesOfTheWhole) {
  const Shape shape{4, 6, 5};
  const std::vector<float> whole = Initial(Make("w", Replicated(shape)), 1234);
  for (int dim = 0; dim < 2; ++dim) {
    for (int part = 0; part < 2; ++part) {
      const Parameter block = Make("w", SplitOverTensor(shape, dim, 2, part));
      const std::vector<float> values = Initial(block, 1234);
      const Shape& local = block.sharding.local_shape;
      const Shape& offset = block.sharding.offset;
      int64_t n = 0;
      for (int64_t i = 0; i < local[0]; ++i)
        for (int64_t j = 0; j < local[1]; ++j)
          for (int64_t k = 0; k < local[2]; ++k)
            ASSERT_EQ(values[n++],
                      whole[((i + offset[0]) * 6 + j + offset[1]) * 5 + k + offset[2]]);
    }
  }
}

TEST(ParameterTest, NamesAndSeedsGiveDifferentValues) {
  const Sharding sharding = Replicated({64});
  EXPECT_NE(Initial(Make("a", sharding), 1), Initial(Make("b", sharding), 1));
  EXPECT_NE(Initial(Make("a", sharding), 1), Initial(Make("a", sharding), 2));
  EXPECT_EQ(Initial(Make("a", sharding), 1), Initial(Make("a", sharding), 1));
}

// The variance of a uniform distribution is a third of its bound's square.
TEST(ParameterTest, UniformValuesFillTheirRangeAndDoNotDependOnTheBlock) {
  Parameter whole = Make("w", Replicated({30, 120}));
  EXPECT_FLOAT_EQ(XavierBound(whole), std::sqrt(6.0f / 150));
  whole.initializer = Initializer::Uniform(0.2f);
  const std::vector<float> values = Initial(whole, 1234);
  double sum = 0, squares = 0;
  for (const float value : values) {
    EXPECT_LE(std::abs(value), 0.2f);
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 0.2 * 0.2 / 3, 0.001);
  Parameter block = Make("w", SplitOverTensor({30, 120}, 1, 8, 3));
  block.initializer = whole.initializer;
  const std::vector<float> part = Initial(block, 1234);
  for (int64_t row = 0; row < 30; ++row) {
    for (int64_t column = 0; column < 15; ++column)
      EXPECT_EQ(part[row * 15 + column], values[row * 120 + 45 + column]);
  }
  // An expert's matrix has its own rows alone.
  Parameter experts = Make("experts", Replicated({8, 2, 10, 120}));
  experts.sharding.expert_grid = true;
  EXPECT_FLOAT_EQ(XavierBound(experts), std::sqrt(6.0f / 140));
}

// The logarithms of the steps, and what the logarithms are of, are uniform: the mean of the
// latter is in the middle.
TEST(ParameterTest, ValuesOfStateSpacesFillTheirRangeAndDoNotDependOnTheBlock) {
  Parameter whole = Make("A_log", Replicated({4000}));
  whole.initializer = Initializer::LogUniform(1, 16);
  const std::vector<float> logs = Initial(whole, 1);
  double rates = 0, steps = 0;
  for (const float value : logs) {
    EXPECT_GE(value, 0);
    EXPECT_LE(value, std::log(16.0f));
    rates += std::exp(value);
  }
  EXPECT_NEAR(rates / 4000, 8.5, 0.2);
  whole.initializer = Initializer::StepBias(0.001f, 0.1f);
  const std::vector<float> biases = Initial(whole, 1);
  for (const float value : biases) {
    const double step = std::log1p(std::exp(value));
    EXPECT_GE(step, 0.000999);
    EXPECT_LE(step, 0.1001);
    steps += std::log(step);
  }
  EXPECT_NEAR(steps / 4000, std::log(0.01), 0.1);
  Parameter block = Make("A_log", SplitOverTensor({4000}, 0, 8, 3));
  block.initializer = whole.initializer;
  EXPECT_EQ(Initial(block, 1), std::vector<float>(biases.begin() + 1500, biases.begin() + 2000));
}

TEST(ParameterTest, ZerosAndOnesAreConstant) {
  Parameter parameter = Make("norm.weight", Replicated({3}));
  parameter.initializer = Initializer::Ones();
  EXPECT_EQ(Initial(parameter, 1), std::vector<float>({1, 1, 1}));
  parameter.initializer = Initializer::Zeros();
  EXPECT_EQ(Initial(parameter, 1), std::vector<float>({0, 0, 0}));
}

}  // namespace
}  // namespace megatron
