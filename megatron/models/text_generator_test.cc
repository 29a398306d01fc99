#include "megatron/models/text_generator.h"

#include <cmath>
#include <map>

#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr float kLogits[] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};

std::map<int32_t, int> Histogram(const SamplingOptions& options, int draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[SampleToken(kLogits, 5, options,
                         (static_cast<float>(i) + 0.5f) / static_cast<float>(draws))];
  return counts;
}

TEST(SampleTokenTest, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  SamplingOptions options;
  options.temperature = 0;
  EXPECT_EQ(Histogram(options, 10), (std::map<int32_t, int>{{1, 10}}));
}

TEST(SampleTokenTest, FollowsTheSoftmaxAtItsTemperature) {
  for (double temperature : {0.5, 1.0, 2.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    double sum = 0;
    for (float logit : kLogits) sum += std::exp(logit / temperature);
    std::map<int32_t, int> counts = Histogram(options, 100000);
    for (int token = 0; token < 5; ++token) {
      EXPECT_NEAR(counts[token], 100000 * std::exp(kLogits[token] / temperature) / sum, 2) << token;
    }
  }
}

TEST(SampleTokenTest, TopKAndTopPKeepTheLikeliest) {
  SamplingOptions options;
  options.top_k = 3;
  std::map<int32_t, int> counts = Histogram(options, 1000);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts.count(0) + counts.count(4), 0u);
  options.top_k = 0;
  options.top_p = 0.4;  // the first two have 0.76 of the mass together, the first alone 0.38
  counts = Histogram(options, 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts[1], 500, 1);
  EXPECT_NEAR(counts[3], 500, 1);
}

TEST(SampleTokenTest, TheEndsOfTheUnitIntervalAreTokens) {
  SamplingOptions options;
  EXPECT_EQ(SampleToken(kLogits, 5, options, 1e-8f), 1);
  EXPECT_EQ(SampleToken(kLogits, 5, options, 1.0f), 4);
}

}  // namespace
}  // namespace megatron
