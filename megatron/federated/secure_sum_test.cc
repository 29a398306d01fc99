#include "megatron/federated/secure_sum.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;

using Vector = std::vector<uint32_t>;
constexpr int kElements = 37;

// The last step that a member takes part in.
enum Last { kNone, kAdvertises, kShares, kSendsVector, kReveals };

Vector ValuesOf(int member) {
  std::mt19937 random(member + 1);
  Vector values(kElements);
  for (uint32_t& value : values) value = random();
  return values;
}

void AddTo(const Vector& values, Vector* sum) {
  for (size_t i = 0; i < values.size(); ++i) (*sum)[i] += values[i];
}

// A round of members 0, 10, 20, ...
struct Round {
  explicit Round(int count, int threshold) {
    options.round = "run 7, round 3";
    options.threshold = threshold;
    for (int i = 0; i < count; ++i) members.emplace(10 * i, SecureSumMember(10 * i, options));
  }

  // Returns the unmasked sum.
  absl::StatusOr<Vector> Run(const std::vector<int>& last) {
    const auto takes_part = [&](int member, Last step) { return last[member / 10] >= step; };
    SecureSumServer server(options);
    for (auto& [number, member] : members) {
      if (!takes_part(number, kAdvertises)) continue;
      EXPECT_THAT(server.Advertise(member.advertisement()), IsOk());
    }
    const auto all = server.CloseAdvertising();
    if (!all.ok()) return all.status();
    for (auto& [number, member] : members) {
      if (!takes_part(number, kShares)) continue;
      EXPECT_THAT(server.Share(number, member.ShareKeys(*all).value()), IsOk());
    }
    auto shares = server.CloseSharing();
    if (!shares.ok()) return shares.status();
    Vector sum(kElements, 0);
    for (auto& [number, member] : members) {
      if (!takes_part(number, kShares)) continue;
      const std::vector<Mask> masks = member.Masks((*shares)[number]).value();
      if (!takes_part(number, kSendsVector)) continue;
      Vector masked = ValuesOf(number);
      // An island's ranks add masks to their slices.
      AddMasks(masks, 0, absl::MakeSpan(masked).subspan(0, 5));
      AddMasks(masks, 5, absl::MakeSpan(masked).subspan(5));
      sent[number] = masked;
      AddTo(masked, &sum);
      EXPECT_THAT(server.Masked(number), IsOk());
    }
    const auto summed = server.CloseMasking();
    if (!summed.ok()) return summed.status();
    for (auto& [number, member] : members) {
      if (!takes_part(number, kReveals)) continue;
      EXPECT_THAT(server.Reveal(member.Reveal(*summed).value()), IsOk());
    }
    const auto masks = server.CloseRevealing();
    if (!masks.ok()) return masks.status();
    AddMasks(*masks, 0, absl::MakeSpan(sum));
    return sum;
  }

  SecureSumOptions options;
  std::map<int, SecureSumMember> members;
  std::map<int, Vector> sent;  // by member
};

TEST(SecureSumTest, UnmaskedSumIsThePlainSumForEveryPatternOfDropOuts) {
  int sums = 0, failures = 0;
  for (int count = 2; count <= 5; ++count) {
    for (int threshold = 2; threshold <= count; ++threshold) {
      if (ThresholdOf(threshold, count).value() != threshold) continue;
      int patterns = 1;
      for (int i = 0; i < count; ++i) patterns *= kReveals + 1;
      for (int pattern = 0; pattern < patterns; ++pattern) {
        std::vector<int> last;
        for (int i = 0, rest = pattern; i < count; ++i, rest /= kReveals + 1) {
          last.push_back(rest % (kReveals + 1));
        }
        Vector plain(kElements, 0);
        for (int i = 0; i < count; ++i) {
          if (last[i] >= kSendsVector) AddTo(ValuesOf(10 * i), &plain);
        }
        const bool enough =
            std::count(last.begin(), last.end(), static_cast<int>(kReveals)) >= threshold;
        if (count == 5 && !enough) continue;  // thousands, like those of four
        const auto sum = Round(count, threshold).Run(last);
        if (enough) {
          ++sums;
          ASSERT_THAT(sum, IsOk()) << "pattern " << pattern;
          EXPECT_EQ(*sum, plain) << "pattern " << pattern;
        } else {
          ++failures;
          EXPECT_THAT(sum, StatusIs(absl::StatusCode::kFailedPrecondition));
        }
      }
    }
  }
  // Each member that is lost is lost at one of four steps: with five members and the threshold 3
  // there are 10 * 16 + 5 * 4 + 1 patterns, and so on.
  EXPECT_EQ(sums, 1 + (13 + 1) + (17 + 1) + (181 + 21 + 1));
  EXPECT_EQ(failures, 25 + 2 * 125 + 2 * 625 - 33);
}

TEST(SecureSumTest, ARoundWithTooFewMembersSaysSoAndThatTheWeightsStay) {
  const auto sum = Round(3, 2).Run({kReveals, kSendsVector, kSendsVector});
  EXPECT_THAT(sum, StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("1 members have revealed shares, and 2 are needed")));
  EXPECT_THAT(sum, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the weights stay")));
}

TEST(SecureSumTest, WhatAMemberSendsIsAnotherInEachRoundAndNoElementIsItsValue) {
  Round first(3, 2), second(3, 2);
  ASSERT_THAT(first.Run({kReveals, kReveals, kReveals}), IsOk());
  ASSERT_THAT(second.Run({kReveals, kReveals, kReveals}), IsOk());
  for (const auto& [member, masked] : first.sent) {
    const Vector values = ValuesOf(member);
    for (int i = 0; i < kElements; ++i) {
      // Either happens by chance in 2^32 runs of a test once.
      EXPECT_NE(masked[i], values[i]);
      EXPECT_NE(masked[i], second.sent[member][i]);
    }
  }
}

TEST(SecureSumTest, MemberTellsOneKeyOfEachMemberAndOnlyOnce) {
  Round round(3, 2);
  std::vector<Advertisement> all;
  for (auto& [number, member] : round.members) all.push_back(member.advertisement());
  std::map<int, std::vector<SealedShares>> shares;
  for (auto& [number, member] : round.members) {
    const std::vector<SealedShares> messages = member.ShareKeys(all).value();
    for (const SealedShares& message : messages) shares[message.to].push_back(message);
  }
  SecureSumMember& member = round.members.at(0);
  EXPECT_THAT(member.Reveal({0, 10}), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(member.Masks(shares[0]), IsOk());
  EXPECT_THAT(member.Reveal({0}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(member.Reveal({10, 20}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(member.Reveal({0, 10, 10}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(member.Reveal({0, 10, 30}), StatusIs(absl::StatusCode::kInvalidArgument));
  const RevealedShares revealed = member.Reveal({0, 10}).value();
  EXPECT_EQ(revealed.own_masks.size(), 2u);
  EXPECT_EQ(revealed.mask_keys.size(), 1u);
  EXPECT_EQ(revealed.own_masks.count(20), 0u);
  EXPECT_EQ(revealed.mask_keys.count(20), 1u);
  // The server says that another is lost: both keys of member 10 would be known.
  EXPECT_THAT(member.Reveal({0, 20}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(SecureSumTest, MemberRefusesListsAndSharesThatNoHonestServerSends) {
  Round round(3, 2);
  std::vector<Advertisement> all;
  for (auto& [number, member] : round.members) all.push_back(member.advertisement());
  SecureSumMember& member = round.members.at(0);

  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(member.ShareKeys({all[1], all[2]}), refused);          // without it
  EXPECT_THAT(member.ShareKeys({all[0], all[1], all[1]}), refused);  // twice
  std::vector<Advertisement> changed = all;
  changed[0].mask_key = all[1].seal_key;  // not its key
  EXPECT_THAT(member.ShareKeys(changed), refused);
  changed = all;
  changed[2].seal_key = all[1].seal_key;  // two members are one
  EXPECT_THAT(member.ShareKeys(changed), refused);

  ASSERT_THAT(member.ShareKeys(all), IsOk());
  EXPECT_THAT(member.ShareKeys(all), StatusIs(absl::StatusCode::kFailedPrecondition));
  const std::vector<SealedShares> of_10 = round.members.at(10).ShareKeys(all).value();
  EXPECT_EQ(of_10[0].to, 0);
  EXPECT_THAT(member.Masks({of_10[1]}), refused);            // for member 20
  EXPECT_THAT(member.Masks({of_10[0], of_10[0]}), refused);  // twice
  SealedShares false_sender = of_10[0];
  false_sender.from = 20;
  EXPECT_THAT(member.Masks({false_sender}), refused);
  SealedShares torn = of_10[0];
  torn.sealed.back() ^= 1;
  EXPECT_THAT(member.Masks({torn}), refused);
  EXPECT_THAT(member.Masks({}), StatusIs(absl::StatusCode::kFailedPrecondition));  // too few
  EXPECT_THAT(member.Masks({of_10[0]}), IsOk());
}

TEST(SecureSumTest, ServerFindsFalseShares) {
  Round round(2, 2);
  SecureSumServer server(round.options);
  for (auto& [number, member] : round.members) {
    ASSERT_THAT(server.Advertise(member.advertisement()), IsOk());
    EXPECT_THAT(server.Advertise(member.advertisement()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  const std::vector<Advertisement> all = server.CloseAdvertising().value();
  for (auto& [number, member] : round.members) {
    ASSERT_THAT(server.Share(number, member.ShareKeys(all).value()), IsOk());
  }
  EXPECT_THAT(server.Share(20, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  auto shares = server.CloseSharing().value();
  EXPECT_THAT(server.Masked(20), StatusIs(absl::StatusCode::kInvalidArgument));
  for (auto& [number, member] : round.members) {
    ASSERT_THAT(member.Masks(shares[number]), IsOk());
    ASSERT_THAT(server.Masked(number), IsOk());
    EXPECT_THAT(server.Masked(number), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  const std::vector<int> summed = server.CloseMasking().value();
  ASSERT_THAT(server.Reveal(round.members.at(0).Reveal(summed).value()), IsOk());
  RevealedShares revealed = round.members.at(10).Reveal(summed).value();
  RevealedShares missing = revealed;
  missing.own_masks.erase(0);
  EXPECT_THAT(server.Reveal(missing), StatusIs(absl::StatusCode::kInvalidArgument));
  revealed.own_masks[0].y[5] ^= 1;
  ASSERT_THAT(server.Reveal(revealed), IsOk());
  EXPECT_THAT(server.CloseRevealing(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("a key of member 0 do not give")));
}

TEST(SecureSumTest, MoreThanHalfOfTheMembersAreNeededInAnyCase) {
  // With five members three are needed, though two would do.
  EXPECT_THAT(Round(5, 2).Run({kReveals, kReveals, kSendsVector, kSendsVector, kSendsVector}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("2 members have revealed shares, and 3 are needed")));
  EXPECT_THAT(Round(5, 2).Run({kReveals, kReveals, kReveals, kSendsVector, kShares}), IsOk());
  EXPECT_EQ(ThresholdOf(2, 2).value(), 2);
  EXPECT_EQ(ThresholdOf(2, 3).value(), 2);
  EXPECT_EQ(ThresholdOf(2, 4).value(), 3);
  EXPECT_EQ(ThresholdOf(4, 4).value(), 4);
  EXPECT_EQ(ThresholdOf(2, 255).value(), 128);
  for (const auto& [least, members] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {4, 3}, {200, 256}}) {
    EXPECT_THAT(ThresholdOf(least, members), StatusIs(absl::StatusCode::kInvalidArgument))
        << least << " " << members;
  }
}

}  // namespace
}  // namespace megatron
