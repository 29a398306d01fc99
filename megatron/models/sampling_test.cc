#include "megatron/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

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

// The token by the definition: all tokens in order, and all sums.
int32_t SampleBySorting(const std::vector<float>& logits, const SamplingOptions& options,
                        float uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(options.top_k);
  std::vector<double> sums;
  double sum = 0;
  for (int32_t token : order)
    sums.push_back(sum +=
                   std::exp((double{logits[token]} - logits[order[0]]) / options.temperature));
  size_t kept = sums.size();
  if (options.top_p > 0) {
    kept = 1;
    while (sums[kept - 1] < options.top_p * sum) ++kept;
  }
  size_t drawn = 0;
  while (sums[drawn] < uniform * sums[kept - 1]) ++drawn;
  return order[drawn];
}

TEST(SampleTokenTest, DrawsOfALargeVocabularyAreThoseOfSortedTokens) {
  std::mt19937 random(1);
  std::vector<float> logits(3000);
  for (float& logit : logits) logit = static_cast<float>(random() % 4096) / 512 - 4;
  for (const double temperature : {0.2, 1.0, 5.0}) {
    for (const int64_t top_k : {0, 1, 50, 2999}) {
      for (const double top_p : {0.0, 0.01, 0.7, 0.999}) {
        SamplingOptions options;
        options.temperature = temperature;
        options.top_k = top_k;
        options.top_p = top_p;
        for (int i = 0; i < 40; ++i) {
          const float uniform = static_cast<float>(random() % 65536 + 1) / 65536;
          ASSERT_EQ(SampleToken(logits.data(), 3000, options, uniform),
                    SampleBySorting(logits, options, uniform))
              << temperature << " " << top_k << " " << top_p << " " << uniform;
        }
      }
    }
  }
}

TEST(SampleTokenTest, TheEndsOfTheUnitIntervalAreTokens) {
  SamplingOptions options;
  EXPECT_EQ(SampleToken(kLogits, 5, options, 1e-8f), 1);
  EXPECT_EQ(SampleToken(kLogits, 5, options, 1.0f), 4);
}

TEST(CheckLogitsTest, LogitsThatAreNoNumbersAreTold) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto check = [](const std::vector<float>& logits) {
    return CheckLogits(logits.data(), static_cast<int64_t>(logits.size()));
  };
  EXPECT_THAT(check({0.0f, -infinity, -3e38f}), IsOk());
  EXPECT_THAT(check({3e38f, -3e38f}), IsOk());
  for (const std::vector<float>& logits : std::vector<std::vector<float>>{
           {nan, 1.0f}, {1.0f, nan}, {1.0f, infinity}, {-infinity, -infinity}}) {
    EXPECT_THAT(check(logits), StatusIs(absl::StatusCode::kInternal, HasSubstr("no numbers")))
        << logits[0] << " " << logits[1];
  }
  // The padding behind the vocabulary may be anything.
  const float padded[] = {1.0f, nan};
  EXPECT_THAT(CheckLogits(padded, 1), IsOk());
}

}  // namespace
}  // namespace megatron
