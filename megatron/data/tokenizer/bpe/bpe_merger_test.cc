#include "megatron/data/tokenizer/bpe/bpe_merger.h"

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

class Merges {
 public:
  void Add(int32_t left, int32_t right, uint32_t rank, int32_t id) {
    merges_[{left, right}] = {rank, id};
  }
  BpeMerge operator()(int32_t left, int32_t right) const {
    const auto merge = merges_.find({left, right});
    return merge == merges_.end() ? BpeMerge() : merge->second;
  }

 private:
  std::map<std::pair<int32_t, int32_t>, BpeMerge> merges_;
};

std::vector<int32_t> Merge(const Merges& merges, std::vector<int32_t> ids) {
  ids.resize(BpeMerger().Merge(merges, ids.data(), ids.size()));
  return ids;
}

std::vector<uint32_t> MergeSizes(const Merges& merges, std::vector<int32_t> ids,
                                 std::vector<uint32_t> sizes) {
  sizes.resize(BpeMerger().Merge(merges, ids.data(), ids.size(), sizes.data()));
  return sizes;
}

// Merges by the definition.
std::vector<int32_t> MergeSlowly(const Merges& merges, std::vector<int32_t> ids) {
  while (true) {
    BpeMerge best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const BpeMerge merge = merges(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == BpeMerge::kNone) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + at + 1);
  }
}

TEST(BpeMergerTest, TheLowestRankMergesFirstAndTheLeftmostAmongEquals) {
  Merges merges;
  merges.Add(1, 2, 5, 12);
  merges.Add(2, 3, 4, 23);
  merges.Add(1, 1, 7, 11);
  EXPECT_THAT(Merge(merges, {1, 2, 3}), ElementsAre(1, 23));
  EXPECT_THAT(Merge(merges, {1, 2, 1}), ElementsAre(12, 1));
  EXPECT_THAT(Merge(merges, {1, 1, 1}), ElementsAre(11, 1));
}

TEST(BpeMergerTest, SymbolsWithoutAMergeAreUnchanged) {
  EXPECT_THAT(Merge({}, {}), ElementsAre());
  EXPECT_THAT(Merge({}, {3}), ElementsAre(3));
  EXPECT_THAT(Merge({}, {-3, 4}), ElementsAre(-3, 4));
}

TEST(BpeMergerTest, ShortAndLongListsMergeByTheDefinition) {
  std::mt19937 random(42);
  for (int trial = 0; trial < 300; ++trial) {
    Merges merges;
    // There are equal ranks, and merges whose result ranks before its parts, which no trainer
    // writes.
    for (int i = 0; i < 40; ++i) {
      merges.Add(random() % 12, random() % 12, random() % 20, random() % 12);
    }
    std::vector<int32_t> ids(random() % (3 * BpeMerger::kShort));
    for (int32_t& id : ids) id = random() % 12;
    ASSERT_EQ(Merge(merges, ids), MergeSlowly(merges, ids)) << "trial " << trial;
  }
}

TEST(BpeMergerTest, AMillionEqualSymbolsMergeQuickly) {
  Merges merges;  // x -> 2x -> 4x -> …
  for (int i = 0; i < 10; ++i) merges.Add(i, i, i, i + 1);
  EXPECT_EQ(Merge(merges, std::vector<int32_t>(1 << 20, 0)), std::vector<int32_t>(1 << 10, 10));
}

TEST(BpeMergerTest, SizesOfMergedSymbolsAddUp) {
  Merges merges;
  merges.Add(1, 2, 5, 12);
  merges.Add(3, 3, 4, 33);
  EXPECT_THAT(MergeSizes(merges, {1, 2, 3, 3, 1}, {10, 20, 30, 40, 50}), ElementsAre(30, 70, 50));
  const std::vector<uint32_t> sizes =
      MergeSizes(merges, std::vector<int32_t>(1001, 3), std::vector<uint32_t>(1001, 7));
  EXPECT_EQ(sizes.size(), 501u);
  EXPECT_EQ(sizes.front(), 14u);
  EXPECT_EQ(sizes.back(), 7u);
}

}  // namespace
}  // namespace megatron
