#include "megatron/train/trainer/copy_ring.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

std::vector<int> Keepers(const CopyRing& ring, int ranks, int copy) {
  std::vector<int> keepers;
  for (int rank = 0; rank < ranks; ++rank) {
    keepers.push_back(ring.KeeperOf(rank, copy));
    EXPECT_EQ(ring.KeptBy(keepers.back(), copy), rank);
  }
  return keepers;
}

// Returns how many shards are lost when a host is.
int LostWith(int64_t host, const std::vector<int64_t>& hosts, const CopyRing& ring) {
  int lost = 0;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    bool is_left = hosts[rank] != host;
    for (int copy = 1; copy <= ring.copies(); ++copy)
      is_left = is_left || hosts[ring.KeeperOf(rank, copy)] != host;
    lost += !is_left;
  }
  return lost;
}

TEST(CopyRingTest, OnOneHostTheRanksBehindHaveCopies) {
  const CopyRing ring({7, 7, 7, 7}, 2);
  EXPECT_THAT(Keepers(ring, 4, 1), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(Keepers(ring, 4, 2), ElementsAre(2, 3, 0, 1));
}

TEST(CopyRingTest, CopiesAreOnOtherHosts) {
  EXPECT_THAT(Keepers(CopyRing({0, 0, 2, 2}, 1), 4, 1), ElementsAre(2, 3, 0, 1));
  // Ranks of hosts take turns.
  EXPECT_THAT(Keepers(CopyRing({0, 1, 0, 1}, 1), 4, 1), ElementsAre(1, 0, 3, 2));
  for (const std::vector<int64_t>& hosts : {std::vector<int64_t>{0, 0, 0, 3, 3, 3},
                                            {0, 0, 2, 3, 3},
                                            {0, 1, 1, 0, 4, 4, 4},
                                            {0, 1, 2, 3},
                                            {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8},
                                            {5, 5, 5, 1, 1, 9}}) {
    for (const int copies : {1, 2}) {
      const CopyRing ring(hosts, copies);
      for (const int64_t host : hosts) EXPECT_EQ(LostWith(host, hosts, ring), 0) << host;
    }
  }
}

// Two hosts may be lost where each shard has two copies.
TEST(CopyRingTest, FurtherCopiesAreOnFurtherHosts) {
  const std::vector<int64_t> hosts = {0, 0, 2, 2, 4, 4};
  const CopyRing ring(hosts, 2);
  for (int rank = 0; rank < 6; ++rank) {
    std::set<int64_t> has = {hosts[rank]};
    for (int copy : {1, 2}) has.insert(hosts[ring.KeeperOf(rank, copy)]);
    EXPECT_EQ(has.size(), 3u) << rank;
  }
}

// Four ranks have the copies of three and of one of their own.
TEST(CopyRingTest, AHostWithMoreThanHalfOfTheRanksKeepsAsFewOfItsOwnAsItMay) {
  const std::vector<int64_t> hosts = {0, 0, 0, 3, 3, 3, 3};
  const CopyRing ring(hosts, 1);
  EXPECT_EQ(LostWith(0, hosts, ring), 0);
  EXPECT_EQ(LostWith(3, hosts, ring), 1);
}

TEST(CopyRingTest, ThereAreNoMoreCopiesThanOtherRanks) {
  EXPECT_EQ(CopyRing({0, 1}, 16).copies(), 1);
  EXPECT_EQ(CopyRing({0}, 16).copies(), 0);
  const CopyRing ring({0, 0, 2}, 16);
  std::set<int> keepers;
  for (int copy = 1; copy <= ring.copies(); ++copy) keepers.insert(ring.KeeperOf(0, copy));
  EXPECT_EQ(keepers, (std::set<int>{1, 2}));
}

}  // namespace
}  // namespace megatron
