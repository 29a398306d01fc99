#include "megatron/federated/shamir.h"

#include <set>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using absl_testing::StatusIs;

std::vector<KeyShare> Chosen(const std::vector<KeyShare>& shares, int set) {
  std::vector<KeyShare> chosen;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (set >> i & 1) chosen.push_back(shares[i]);
  }
  return chosen;
}

TEST(ShamirTest, EverySetOfAsManySharesAsTheThresholdGivesTheKey) {
  for (int count = 1; count <= 6; ++count) {
    for (int threshold = 1; threshold <= count; ++threshold) {
      const Key key = RandomKey();
      const std::vector<KeyShare> shares = SplitKey(key, count, threshold);
      for (int set = 1; set < 1 << count; ++set) {
        const std::vector<KeyShare> chosen = Chosen(shares, set);
        const bool enough = static_cast<int>(chosen.size()) >= threshold;
        EXPECT_EQ(JoinShares(chosen).value() == key, enough)
            << "set " << set << " of " << count << ", threshold " << threshold;
      }
    }
  }
}

TEST(ShamirTest, AsManySharesAsThereAreElementsGiveTheKey) {
  const Key key = RandomKey();
  const std::vector<KeyShare> shares = SplitKey(key, kMostShares, kMostShares);
  EXPECT_EQ(JoinShares(shares).value(), key);
}

TEST(ShamirTest, OneShareBelowTheThresholdFitsEveryKey) {
  // For the shares of x = 1, each value of x = 2 gives another first byte: none is excluded.
  const std::vector<KeyShare> shares = SplitKey(RandomKey(), 3, 2);
  std::set<int> first_bytes;
  for (int y = 0; y < 256; ++y) {
    KeyShare other;
    other.x = 2;
    other.y[0] = static_cast<uint8_t>(y);
    first_bytes.insert(JoinShares({shares[0], other}).value()[0]);
  }
  EXPECT_EQ(first_bytes.size(), 256u);
}

TEST(ShamirTest, TellsBadShares) {
  const std::vector<KeyShare> shares = SplitKey(RandomKey(), 3, 2);
  EXPECT_THAT(JoinShares({}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(JoinShares({shares[0], shares[0]}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(JoinShares({shares[0], KeyShare{}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
