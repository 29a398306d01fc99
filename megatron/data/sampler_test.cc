#include "megatron/data/sampler.h"

#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(SamplerTest, RanksTakeConsecutiveRunsOfAMicroStep) {
  const SampleRange range = MicroBatchSamples({4, 3, 2}, 100, 1);
  EXPECT_EQ(range.begin, 100 + 1 * 12 + 2 * 4);
  EXPECT_EQ(range.count, 4);
}

TEST(SamplerTest, AnIterationTakesTheSameSamplesOnAnyLayout) {
  constexpr int64_t kGlobalBatch = 24, kConsumed = 48;
  for (const int64_t ranks : {1, 2, 3, 6}) {
    for (const int64_t micro_batch_size : {1, 2, 4}) {
      std::multiset<int64_t> taken;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t m = 0; m < kGlobalBatch / (ranks * micro_batch_size); ++m) {
          const SampleRange range =
              MicroBatchSamples({micro_batch_size, ranks, rank}, kConsumed, m);
          for (int64_t i = 0; i < range.count; ++i) taken.insert(range.begin + i);
        }
      }
      ASSERT_EQ(static_cast<int64_t>(taken.size()), kGlobalBatch) << ranks << " ranks";
      int64_t expected = kConsumed;
      for (const int64_t sample : taken) EXPECT_EQ(sample, expected++);
    }
  }
}

}  // namespace
}  // namespace megatron
