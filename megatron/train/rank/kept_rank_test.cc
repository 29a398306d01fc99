#include "megatron/train/rank/kept_rank.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/trainer/kept_state.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kIteration = 7;

// What a rank has that keeps these of so many shards.
KeptState Shards(const std::vector<int>& shards, int count) {
  KeptState state;
  state.sharing.count = count;
  for (const int shard : shards) {
    KeptShard kept;
    kept.shard = shard;
    kept.common.progress.iteration = kIteration;
    state.shards.push_back(kept);
  }
  return state;
}

std::vector<int> ShardsOf(KeptRank& kept, int count, int64_t iteration = kIteration) {
  std::vector<int> shards;
  const KeptState* const state = kept.Of({iteration, count});
  if (state == nullptr) return shards;
  for (const KeptShard& shard : state->shards) shards.push_back(shard.shard);
  return shards;
}

// Three ranks go on with a fourth. Others may be lost when they have the shards of three alone.
TEST(KeptRankTest, BothCutsAreKeptWhileOthersMayHaveOneAlone) {
  KeptRank kept;
  kept.Keep(Shards({1, 0}, 3));
  kept.KeepBeside({kIteration, 3}, Shards({2, 1}, 4));
  EXPECT_THAT(ShardsOf(kept, 4), ElementsAre(2, 1));
  EXPECT_THAT(ShardsOf(kept, 3), ElementsAre(1, 0));
  EXPECT_THAT(ShardsOf(kept, 3, kIteration + 1), IsEmpty());
  EXPECT_THAT(ShardsOf(kept, 2), IsEmpty());
  // The next world begins with the older cut, and the other one was not whole.
  kept.KeepBeside({kIteration, 3}, Shards({0, 1}, 2));
  EXPECT_THAT(ShardsOf(kept, 2), ElementsAre(0, 1));
  EXPECT_THAT(ShardsOf(kept, 3), ElementsAre(1, 0));
  EXPECT_THAT(ShardsOf(kept, 4), IsEmpty());
}

// A new rank takes the place of a lost one, and others move up.
TEST(KeptRankTest, ShardsOfTheSameCutAreKeptTogether) {
  KeptRank kept;
  kept.Keep(Shards({3, 2}, 4));
  kept.KeepBeside({kIteration, 4}, Shards({2, 1}, 4));
  EXPECT_THAT(ShardsOf(kept, 4), ElementsAre(2, 1, 3));
}

TEST(KeptRankTest, AStateThatAllHaveTakesThePlaceOfThoseBefore) {
  KeptRank kept;
  kept.Keep(Shards({1, 0}, 3));
  kept.KeepBeside({kIteration, 3}, Shards({2, 1}, 4));
  kept.Keep(Shards({2, 1}, 4));
  EXPECT_THAT(ShardsOf(kept, 4), ElementsAre(2, 1));
  EXPECT_THAT(ShardsOf(kept, 3), IsEmpty());
  kept.ForgetState();
  EXPECT_THAT(ShardsOf(kept, 4), IsEmpty());
}

// As one of a process that has just come, or in a layout whose ranks can't keep theirs.
TEST(KeptRankTest, OneOfTheTwoMayBeMissing) {
  KeptRank kept;
  kept.KeepBeside({kIteration, 3}, Shards({3, 2}, 4));
  EXPECT_THAT(ShardsOf(kept, 4), ElementsAre(3, 2));
  kept.KeepBeside({kIteration, 4}, std::nullopt);
  EXPECT_THAT(ShardsOf(kept, 4), ElementsAre(3, 2));
}

}  // namespace
}  // namespace megatron
