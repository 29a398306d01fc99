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

Tensor TensorOf(std::vector<int32_t>& values) {
  return Tensor(values.data(), DType::kInt32, {static_cast<int64_t>(values.size())});
}
Tensor TensorOf(std::vector<int64_t>& values) {
  return Tensor(values.data(), DType::kInt64, {static_cast<int64_t>(values.size())});
}

// Samples numbered from `first_sample`, of whose tokens `count` are kept. The rank knows `rows`
// tokens of each sample, or all.
struct Chosen {
  std::vector<int64_t> sample;
  std::vector<int32_t> kept, place;

  Chosen(int64_t samples, int64_t length, int64_t count, int64_t first_sample = 0, int threads = 1,
         int64_t rows = 0)
      : kept(samples * count), place(samples * length) {
    if (rows == 0) rows = length;
    for (int64_t s = 0; s < samples; ++s) sample.insert(sample.end(), rows, first_sample + s);
    ThreadPool pool(threads);
    ChooseTokens(Stream::Cpu(&pool), kKey, samples, TensorOf(sample), TensorOf(kept),
                 TensorOf(place));
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

TEST(TokenSubsetTest, EveryTokenIsKeptInItsOrderOrHasNoPlace) {
  const Chosen chosen(3, 10, 4);
  int kept = 0;
  for (int32_t t = 0; t < 30; ++t) {
    const int32_t place = chosen.place[t];
    if (place >= 0) {
      EXPECT_EQ(chosen.kept[place], t);
      ++kept;
    }
  }
  EXPECT_EQ(kept, 12);
  EXPECT_TRUE(std::is_sorted(chosen.kept.begin(), chosen.kept.end()));
  for (int k = 0; k < 12; ++k) EXPECT_EQ(chosen.kept[k] / 10, k / 4);
}

TEST(TokenSubsetTest, ARankWithAPartOfEachSampleChoosesTheSameTokens) {
  const Chosen whole(3, 16, 4, 5), part(3, 16, 4, 5, /*threads=*/1, /*rows=*/8);
  EXPECT_EQ(part.kept, whole.kept);
  EXPECT_EQ(part.place, whole.place);
}

// Appends chunks `rank` and 2 * size - 1 - rank of each sample of `length` values, as
// layers/context_slice.h has them.
template <typename T>
std::vector<T> PartOf(const std::vector<T>& values, size_t length, int size, int rank) {
  std::vector<T> part;
  const size_t chunk = length / (2 * size);
  for (size_t sample = 0; sample < values.size(); sample += length) {
    for (const int number : {rank, 2 * size - 1 - rank}) {
      const auto begin = values.begin() + sample + number * chunk;
      part.insert(part.end(), begin, begin + chunk);
    }
  }
  return part;
}

TEST(TokenSubsetTest, RanksShareOutKeptTokensAsTheyShareOutAll) {
  constexpr int64_t kSamples = 3, kLength = 24, kCount = 12, kTokens = kSamples * kLength;
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(size);
    Chosen chosen(kSamples, kLength, kCount);
    std::vector<int32_t> tokens(kTokens), in_order;
    for (int32_t t = 0; t < kTokens; ++t) tokens[t] = t;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int32_t> part = PartOf(chosen.kept, kCount, size, rank);
      in_order.insert(in_order.end(), part.begin(), part.end());
    }
    std::vector<int> owners(in_order.size());
    for (int rank = 0; rank < size; ++rank) {
      const SampleCut cut = {size, rank};
      const std::vector<int32_t> mine = PartOf(tokens, kLength, size, rank);
      std::vector<int32_t> row(in_order.size()), place(mine.size()), bypass(mine.size());
      FindKeptRows(stream, cut, kSamples, TensorOf(chosen.kept), TensorOf(chosen.place),
                   {TensorOf(row), TensorOf(place), TensorOf(bypass)});
      for (size_t k = 0; k < row.size(); ++k) {
        if (row[k] < 0) continue;
        EXPECT_EQ(mine[row[k]], in_order[k]);
        ++owners[k];
      }
      for (size_t r = 0; r < mine.size(); ++r) {
        const bool kept = chosen.place[mine[r]] >= 0;
        EXPECT_EQ(bypass[r], kept ? -1 : static_cast<int32_t>(r));
        EXPECT_EQ(place[r] >= 0, kept);
        if (place[r] >= 0) {
          EXPECT_EQ(in_order[place[r]], mine[r]);
        }
      }
    }
    EXPECT_THAT(owners, testing::Each(1));
  }
}

TEST(TokenSubsetTest, FindsTheKeptTokensOfARank) {
  constexpr int64_t kSamples = 2, kLength = 16, kCount = 8;
  Chosen chosen(kSamples, kLength, kCount, /*first_sample=*/7);
  ThreadPool pool(1);
  std::vector<int32_t> cu_seqlens(kSamples + 1), place(8), position(8);
  std::vector<int64_t> sample(8);
  FindKeptPart(Stream::Cpu(&pool), {2, 1}, kSamples, kLength, TensorOf(chosen.kept),
               TensorOf(chosen.sample),
               {TensorOf(cu_seqlens), TensorOf(place), TensorOf(sample), TensorOf(position)});
  EXPECT_THAT(cu_seqlens, testing::ElementsAre(0, 4, 8));
  EXPECT_THAT(place, testing::ElementsAre(2, 3, 4, 5, 2, 3, 4, 5));
  EXPECT_THAT(sample, testing::ElementsAre(7, 7, 7, 7, 8, 8, 8, 8));
  for (int i = 0; i < 8; ++i) {
    const int32_t token = chosen.kept[i / 4 * kCount + place[i]];
    EXPECT_EQ(position[i], token % kLength);
    EXPECT_EQ(token / kLength, i / 4);
  }
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
  EXPECT_THAT(chosen.place, testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TokenSubsetTest, EachPlaceIsKeptAsOftenAsTheOthers) {
  std::vector<int> kept(8);
  const Chosen chosen(4000, 8, 2);
  for (const int32_t token : chosen.kept) ++kept[token % 8];
  // 1000 of each are expected, with a standard deviation of 27.
  for (const int count : kept) EXPECT_NEAR(count, 1000, 140);
}

TEST(TokenSubsetTest, GathersNumbers) {
  ThreadPool pool(1);
  std::vector<int32_t> kept = {1, 3}, x = {5, 6, 7, 8}, y(2);
  GatherNumbers(Stream::Cpu(&pool), TensorOf(kept), TensorOf(x), TensorOf(y));
  EXPECT_THAT(y, testing::ElementsAre(6, 8));
}

}  // namespace
}  // namespace megatron::ops
