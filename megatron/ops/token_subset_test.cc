#include "megatron/ops/token_subset.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron::ops {
namespace {

constexpr PhiloxKey kKey = {11, 12};

// Samples numbered from `first_sample`, of whose tokens `count` are kept.
struct Chosen {
  std::vector<int32_t> kept, place, bypass, cu_seqlens;

  Chosen(int64_t samples, int64_t length, int64_t count, int64_t first_sample = 0, int threads = 1)
      : kept(samples * count),
        place(samples * length),
        bypass(samples * length),
        cu_seqlens(samples + 1) {
    std::vector<int64_t> sample;
    std::vector<int32_t> position;
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t t = 0; t < length; ++t) {
        sample.push_back(first_sample + s);
        position.push_back(static_cast<int32_t>(t));
      }
    }
    ThreadPool pool(threads);
    const auto vector = [](std::vector<int32_t>& values) {
      return Tensor(values.data(), DType::kInt32, {static_cast<int64_t>(values.size())});
    };
    ChooseTokens(Stream::Cpu(&pool), kKey, samples,
                 Tensor(sample.data(), DType::kInt64, {samples * length}), vector(position),
                 {vector(kept), vector(place), vector(bypass), vector(cu_seqlens)});
  }
};

TEST(TokenSubsetTest, KeepsTheTokensWithTheSmallestWords) {
  constexpr int64_t kLength = 40, kCount = 13, kSample = (int64_t{5} << 32) + 3;
  const Chosen chosen(1, kLength, kCount, kSample);
  std::vector<std::pair<uint32_t, int32_t>> words;
  for (int32_t t = 0; t < kLength; ++t)
    words.emplace_back(Philox(kKey, {{3, 5, static_cast<uint32_t>(t), 0}}).word[0], t);
  std::sort(words.begin(), words.end());
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < kCount; ++i) expected.push_back(words[i].second);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(chosen.kept, expected);
}

TEST(TokenSubsetTest, EveryTokenIsKeptInItsOrderOrBypasses) {
  const Chosen chosen(3, 10, 4);
  for (int32_t t = 0; t < 30; ++t) {
    const int32_t place = chosen.place[t];
    EXPECT_EQ(chosen.bypass[t], place < 0 ? t : -1);
    if (place >= 0) {
      EXPECT_EQ(chosen.kept[place], t);
    }
  }
  EXPECT_TRUE(std::is_sorted(chosen.kept.begin(), chosen.kept.end()));
  EXPECT_THAT(chosen.cu_seqlens, testing::ElementsAre(0, 4, 8, 12));
  for (int k = 0; k < 12; ++k) EXPECT_EQ(chosen.kept[k] / 10, k / 4);
}

TEST(TokenSubsetTest, ASamplesSubsetDependsOnNoOtherSample) {
  const Chosen together(4, 16, 5, /*first_sample=*/7, /*threads=*/3);
  std::set<std::vector<int32_t>> subsets;
  for (int64_t s = 0; s < 4; ++s) {
    Chosen alone(1, 16, 5, 7 + s);
    subsets.insert(alone.kept);
    for (int32_t& token : alone.kept) token += static_cast<int32_t>(16 * s);
    EXPECT_TRUE(std::equal(alone.kept.begin(), alone.kept.end(), together.kept.begin() + 5 * s));
  }
  EXPECT_EQ(subsets.size(), 4);
}

TEST(TokenSubsetTest, AllTokensCanBeKept) {
  const Chosen chosen(2, 3, 3);
  EXPECT_THAT(chosen.kept, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(chosen.bypass, testing::Each(-1));
}

TEST(TokenSubsetTest, EachPlaceIsKeptAsOftenAsTheOthers) {
  std::vector<int> kept(8);
  const Chosen chosen(4000, 8, 2);
  for (const int32_t token : chosen.kept) ++kept[token % 8];
  // 1000 of each are expected, with a standard deviation of 27.
  for (const int count : kept) EXPECT_NEAR(count, 1000, 140);
}

TEST(TokenSubsetTest, GathersNumbersOfBothTypes) {
  ThreadPool pool(1);
  std::vector<int32_t> kept = {1, 3}, x = {5, 6, 7, 8}, y(2);
  std::vector<int64_t> wide_x = {int64_t{1} << 40, 2, 3, int64_t{1} << 41}, wide_y(2);
  const Tensor kept_K(kept.data(), DType::kInt32, {2});
  GatherNumbers(Stream::Cpu(&pool), kept_K, Tensor(x.data(), DType::kInt32, {4}),
                Tensor(y.data(), DType::kInt32, {2}));
  GatherNumbers(Stream::Cpu(&pool), kept_K, Tensor(wide_x.data(), DType::kInt64, {4}),
                Tensor(wide_y.data(), DType::kInt64, {2}));
  EXPECT_THAT(y, testing::ElementsAre(6, 8));
  EXPECT_THAT(wide_y, testing::ElementsAre(2, int64_t{1} << 41));
}

}  // namespace
}  // namespace megatron::ops
