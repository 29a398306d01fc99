#include "megatron/data/prefetch.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A source whose samples are their numbers; every seventh is slow to read, every 50th is damaged.
class Numbers : public SampleSource {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    ++reads_;
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (index < 0 || index >= size_)
      return absl::OutOfRangeError(absl::StrCat("no sample ", index));
    if (index % 50 == 49) return absl::DataLossError(absl::StrCat("damaged sample ", index));
    sample->tokens = {static_cast<int32_t>(index)};
    return absl::OkStatus();
  }
  int64_t reads() const { return reads_; }

 private:
  const int64_t size_;
  mutable std::atomic<int64_t> reads_{0};
};

void ExpectSample(SamplePrefetcher& prefetcher, int64_t ordinal) {
  Sample sample;
  const absl::Status status = prefetcher.Get(ordinal, &sample);
  if (ordinal % 50 == 49) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                 HasSubstr(absl::StrCat("damaged sample ", ordinal))));
  } else {
    ASSERT_THAT(status, IsOk()) << ordinal;
    EXPECT_THAT(sample.tokens, ElementsAre(ordinal));
  }
}

TEST(SamplePrefetcherTest, SamplesAndErrorsKeepTheirOrderForAnyNumberOfWorkers) {
  const Numbers numbers(1000);
  for (const int64_t workers : {0, 1, 2, 7}) {
    for (const int64_t capacity : {1, 3, 40}) {
      SamplePrefetcher prefetcher(&numbers, {{4, 1, 0}, workers, capacity});
      for (int64_t ordinal = 0; ordinal < 200; ++ordinal) ExpectSample(prefetcher, ordinal);
    }
  }
}

TEST(SamplePrefetcherTest, OnlySamplesOfItsRankAreRead) {
  constexpr SamplerLayout kLayout = {3, 4, 2};
  const Numbers numbers(240);
  SamplePrefetcher prefetcher(&numbers, {kLayout, 2, 8});
  int64_t asked = 0;
  for (int64_t micro_batch = 0; micro_batch < 240 / 12; ++micro_batch) {
    const SampleRange range = MicroBatchSamples(kLayout, 0, micro_batch);
    for (int64_t i = 0; i < range.count; ++i, ++asked) ExpectSample(prefetcher, range.begin + i);
  }
  EXPECT_EQ(asked, 60);
  EXPECT_EQ(numbers.reads(), 60);
}

TEST(SamplePrefetcherTest, ReadingAheadFollowsACallerThatJumps) {
  const Numbers numbers(1000);
  SamplePrefetcher prefetcher(&numbers, {{1, 1, 0}, 3, 5});
  for (const int64_t start : {0, 500, 3, 990, 3}) {
    for (int64_t i = 0; i < 10; ++i) ExpectSample(prefetcher, start + i);
  }
}

TEST(SamplePrefetcherTest, ReadingAheadStopsAtTheCapacity) {
  const Numbers numbers(1000);
  SamplePrefetcher prefetcher(&numbers, {{1, 1, 0}, 4, 6});
  ExpectSample(prefetcher, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(numbers.reads(), 1 + 6);
}

TEST(SamplePrefetcherTest, ASampleThatDoesNotExistGivesTheSourcesError) {
  const Numbers numbers(10);
  SamplePrefetcher prefetcher(&numbers, {{1, 1, 0}, 2, 4});
  Sample sample;
  for (int64_t ordinal = 8; ordinal < 10; ++ordinal) ExpectSample(prefetcher, ordinal);
  for (const int64_t ordinal : {10, -1, 11})
    EXPECT_THAT(prefetcher.Get(ordinal, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(SamplePrefetcherTest, DestructionStopsReadingAtAnyMoment) {
  const Numbers numbers(1000);
  for (int i = 0; i < 100; ++i) {
    SamplePrefetcher prefetcher(&numbers, {{1, 1, 0}, 3, 20});
    if (i % 2 == 0) ExpectSample(prefetcher, i);
  }
}

TEST(SamplePrefetcherTest, MemoryOfSamplesIsReused) {
  const Numbers numbers(1000);
  SamplePrefetcher prefetcher(&numbers, {{1, 1, 0}, 1, 1});
  Sample sample;
  sample.tokens.reserve(1000);
  const int32_t* const mine = sample.tokens.data();
  ASSERT_THAT(prefetcher.Get(0, &sample), IsOk());
  EXPECT_NE(sample.tokens.data(), mine);
  ASSERT_THAT(prefetcher.Get(1, &sample), IsOk());
  EXPECT_EQ(sample.tokens.data(), mine);
}

}  // namespace
}  // namespace megatron
