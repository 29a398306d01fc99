#include "megatron/data/sample_order.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/sampler.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;

std::vector<int64_t> Samples(const SampleOrder& order, int64_t begin, int64_t end) {
  std::vector<int64_t> samples;
  for (int64_t ordinal = begin; ordinal < end; ++ordinal)
    samples.push_back(order.SampleOf(ordinal));
  return samples;
}

TEST(GlobalOrderTest, EveryEpochTakesEverySampleOnce) {
  for (const int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    const GlobalOrder order(size, 1234);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const std::vector<int64_t> samples = Samples(order, epoch * size, (epoch + 1) * size);
      const std::set<int64_t> distinct(samples.begin(), samples.end());
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), size);
      EXPECT_EQ(*distinct.begin(), 0);
      EXPECT_EQ(*distinct.rbegin(), size - 1);
    }
  }
}

TEST(GlobalOrderTest, EachEpochAndSeedHasADifferentOrder) {
  const GlobalOrder order(100, 1), other(100, 2);
  EXPECT_NE(Samples(order, 0, 100), Samples(order, 100, 200));
  EXPECT_NE(Samples(order, 0, 100), Samples(other, 0, 100));
  EXPECT_EQ(Samples(order, 0, 100), Samples(GlobalOrder(100, 1), 0, 100));
}

// Each sample is 2,000 times at each position in 20,000 epochs of ten samples, give or take five
// standard deviations of 42.
TEST(GlobalOrderTest, EverySampleIsAtEveryPositionEquallyOften) {
  constexpr int64_t kSize = 10, kEpochs = 20000;
  const GlobalOrder order(kSize, 7);
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (int64_t ordinal = 0; ordinal < kSize * kEpochs; ++ordinal)
    ++counts[{ordinal % kSize, order.SampleOf(ordinal)}];
  for (int64_t place = 0; place < kSize; ++place) {
    for (int64_t sample = 0; sample < kSize; ++sample)
      EXPECT_NEAR((counts[{place, sample}]), kEpochs / kSize, 210) << place << " " << sample;
  }
}

TEST(GlobalOrderTest, OrdersOfLargeDatasetsStayInRange) {
  const int64_t size = int64_t{3} << 40;
  const GlobalOrder order(size, 1);
  for (const int64_t ordinal : {int64_t{0}, size - 1, size, 5 * size + 12345}) {
    EXPECT_GE(order.SampleOf(ordinal), 0);
    EXPECT_LT(order.SampleOf(ordinal), size);
  }
}

// sampler.h hands out ordinals. For every layout, also when a run is interrupted and resumed with
// another layout, an epoch of ordinals is an epoch of samples.
TEST(GlobalOrderTest, EverySampleIsTakenOnceAlthoughTheLayoutChanges) {
  constexpr int64_t kSize = 96, kGlobalBatch = 24;
  const GlobalOrder order(kSize, 3);
  std::multiset<int64_t> taken;
  const std::vector<SamplerLayout> layouts = {{4, 3, 0}, {1, 8, 0}, {12, 2, 0}, {2, 1, 0}};
  for (size_t iteration = 0; iteration < layouts.size(); ++iteration) {
    SamplerLayout layout = layouts[iteration];
    for (int64_t rank = 0; rank < layout.data_parallel_size; ++rank) {
      layout.data_parallel_rank = rank;
      const int64_t micro_batches =
          kGlobalBatch / (layout.micro_batch_size * layout.data_parallel_size);
      for (int64_t m = 0; m < micro_batches; ++m) {
        const SampleRange range =
            MicroBatchSamples(layout, static_cast<int64_t>(iteration) * kGlobalBatch, m);
        for (int64_t i = 0; i < range.count; ++i) taken.insert(order.SampleOf(range.begin + i));
      }
    }
  }
  EXPECT_EQ(taken.size(), static_cast<size_t>(kSize));
  EXPECT_EQ(std::set<int64_t>(taken.begin(), taken.end()).size(), static_cast<size_t>(kSize));
}

// torch.randperm(6, generator=torch.Generator().manual_seed(epoch)) is 2, 5, 3, 0, 1, 4 for epoch 0
// and 1, 5, 2, 0, 3, 4 for epoch 1.
TEST(BucketOrderTest, RanksReadTheirBucketsInMegatronsOrder) {
  // 13 samples with micro-batches of 2 on 2 ranks give the buckets [0, 6) and [6, 12); sample 12 is
  // left out.
  const BucketOrder order(13, 2, 2);
  EXPECT_THAT(Samples(order, 0, 12), ElementsAre(2, 5, 8, 11, 3, 0, 9, 6, 1, 4, 7, 10));
  EXPECT_THAT(Samples(order, 12, 24), ElementsAre(1, 5, 7, 11, 2, 0, 8, 6, 3, 4, 9, 10));
  EXPECT_EQ(Samples(order, 0, 12), Samples(BucketOrder(13, 2, 2), 0, 12));
}

TEST(BucketOrderTest, EveryEpochTakesEverySampleOnceIfMicroStepsDivideTheirNumber) {
  const BucketOrder order(120, 3, 4);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> samples = Samples(order, epoch * 120, (epoch + 1) * 120);
    EXPECT_EQ(std::set<int64_t>(samples.begin(), samples.end()).size(), 120u);
  }
}

class Numbers : public SampleSource {
 public:
  int64_t size() const override { return 5; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    sample->tokens = {static_cast<int32_t>(index)};
    return absl::OkStatus();
  }
};

TEST(OrderedSamplesTest, SamplesContinueWithoutEnd) {
  const OrderedSamples samples(std::make_unique<Numbers>(), std::make_unique<GlobalOrder>(5, 1));
  EXPECT_EQ(samples.size(), INT64_MAX);
  std::multiset<int32_t> taken;
  Sample sample;
  for (int64_t i = 0; i < 10; ++i) {
    ASSERT_THAT(samples.Get(i, &sample), IsOk());
    taken.insert(sample.tokens[0]);
  }
  EXPECT_THAT(taken, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(samples.Get(-1, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

}  // namespace
}  // namespace megatron
