#include "megatron/ops/moe/sinkhorn.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

using Matrix = std::vector<std::vector<double>>;

class SinkhornTest : public ::testing::Test {
 protected:
  // exp(logits + bias), rows divided by their sums.
  Matrix Balanced(const HostTensor& logits) {
    const int64_t tokens = logits.tensor().dim(0), experts = logits.tensor().dim(1);
    const HostTensor bias({experts}, DType::kFloat32);
    SinkhornBias(stream_, logits, bias);
    Matrix values(tokens, std::vector<double>(experts));
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t e = 0; e < experts; ++e)
        sum += values[t][e] = std::exp(logits.Get(t * experts + e) + bias.Get(e));
      for (double& value : values[t]) value /= sum;
    }
    return values;
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::Cpu(&pool_);
};

// The algorithm as in Megatron: d0 and d1 are computed in turn until d1 converges.
Matrix Reference(const HostTensor& logits) {
  const int64_t tokens = logits.tensor().dim(0), experts = logits.tensor().dim(1);
  Matrix cost(tokens, std::vector<double>(experts));
  for (int64_t i = 0; i < logits.numel(); ++i)
    cost[i / experts][i % experts] = std::exp(logits.Get(i));
  std::vector<double> d0(tokens, 1), d1(experts, 1), old = d1;
  for (double error = 1e9; error > 1e-4; old = d1) {
    for (int64_t t = 0; t < tokens; ++t) {
      const double sum = std::inner_product(d1.begin(), d1.end(), cost[t].begin(), 0.0);
      d0[t] = 1.0 / static_cast<double>(tokens) / (sum + 1e-8);
    }
    error = 0;
    for (int64_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum += d0[t] * cost[t][e];
      d1[e] = 1.0 / static_cast<double>(experts) / (sum + 1e-8);
      error += std::fabs(old[e] - d1[e]) / static_cast<double>(experts);
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < experts; ++e) cost[t][e] *= d1[e] * d0[t];
  }
  return cost;
}

TEST_F(SinkhornTest, GivesWhatMegatronsRuleGives) {
  for (const Shape& shape : {Shape{16, 4}, Shape{33, 8}, Shape{5, 2}, Shape{1, 3}}) {
    const HostTensor logits = HostTensor::Normal(shape, DType::kFloat32, 3);
    const Matrix got = Balanced(logits);
    Matrix want = Reference(logits);
    for (size_t t = 0; t < want.size(); ++t) {
      const double sum = std::accumulate(want[t].begin(), want[t].end(), 0.0);
      for (size_t e = 0; e < want[t].size(); ++e) EXPECT_NEAR(got[t][e], want[t][e] / sum, 1e-5);
    }
  }
}

TEST_F(SinkhornTest, AllExpertsAreChosenEquallyOften) {
  HostTensor logits = HostTensor::Normal({200, 6}, DType::kFloat32, 5);
  for (int64_t t = 0; t < 200; ++t)
    logits.Set(6 * t + 2, logits.Get(6 * t + 2) + 2);  // a favourite
  const Matrix values = Balanced(logits);
  for (size_t e = 0; e < 6; ++e) {
    double sum = 0;
    for (const auto& row : values) sum += row[e];
    EXPECT_NEAR(sum, 200.0 / 6, 0.01);
  }
}

TEST_F(SinkhornTest, LogitsOfAnySizeGiveFiniteBiases) {
  HostTensor logits({3, 3}, DType::kFloat32);
  for (int64_t t = 0; t < 3; ++t) {
    logits.Set(3 * t, 300);
    logits.Set(3 * t + 2, -300);
  }
  const HostTensor bias({3}, DType::kFloat32);
  SinkhornBias(stream_, logits, bias);
  for (int64_t e = 0; e < 3; ++e) EXPECT_TRUE(std::isfinite(bias.Get(e))) << e;
  EXPECT_LT(bias.Get(0), bias.Get(1));
}

}  // namespace
}  // namespace megatron::ops
