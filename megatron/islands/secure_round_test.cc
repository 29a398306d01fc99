#include "megatron/islands/secure_round.h"

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/federated/shamir.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kElements = 29;
constexpr auto kTooLate = absl::StatusCode::kOutOfRange;
constexpr auto kForged = absl::StatusCode::kInvalidArgument;

std::vector<uint32_t> ValuesOf(int island) {
  std::mt19937 random(island + 1);
  std::vector<uint32_t> values(kElements);
  for (uint32_t& value : values) value = random();
  return values;
}

// The round of three islands, and their sides of it.
class SecureRoundTest : public ::testing::Test {
 protected:
  SecureRoundTest() {
    for (const int island : {0, 3, 8}) Member(island);
  }
  SecureSumMember& Member(int island) {
    auto& member = members_[island];
    if (member == nullptr) {
      member =
          std::make_unique<SecureSumMember>(island, SecureSumOptions{SecureRoundName(5, 2), 2});
    }
    return *member;
  }
  IslandMessage Told(int island) const {
    IslandMessage state;
    round_.Tell(island, &state);
    return state;
  }
  void AdvertiseAll() {
    for (const auto& [island, member] : members_)
      EXPECT_THAT(round_.Advertise(member->advertisement()), IsOkAndHolds(true));
    EXPECT_THAT(round_.CloseStep(), IsOk());
  }
  absl::Status Share(int island) {
    return round_.Share(island, Member(island).ShareKeys(Told(island).members).value());
  }
  std::vector<uint32_t> MaskedOf(int island) {
    std::vector<uint32_t> masked = ValuesOf(island);
    AddMasks(Member(island).Masks(Told(island).shares).value(), 0, absl::MakeSpan(masked));
    return masked;
  }
  RevealedShares RevealedBy(int island) {
    const IslandMessage told = Told(island);
    return Member(island).Reveal({told.summed.begin(), told.summed.end()}).value();
  }
  // Returns the sum of the values of these islands if the round's is that, bit for bit.
  void ExpectSumOf(const std::vector<int>& islands) {
    ASSERT_EQ(round_.step(), SumStep::kUnmasking);
    SecureRound::Sum sum = round_.Take();
    EXPECT_EQ(sum.islands, islands);
    std::vector<uint32_t> plain(kElements, 0);
    for (const int island : islands) {
      const std::vector<uint32_t> values = ValuesOf(island);
      for (int i = 0; i < kElements; ++i) plain[i] += values[i];
    }
    EXPECT_NE(sum.values, plain);  // the masks are there still
    AddMasks(sum.masks, 0, absl::MakeSpan(sum.values));
    EXPECT_EQ(sum.values, plain);
  }

  SecureRound round_{5, 2, 2, kElements};
  std::map<int, std::unique_ptr<SecureSumMember>> members_;
};

TEST_F(SecureRoundTest, StepsGoOnWhenAllHaveCome) {
  AdvertiseAll();
  for (const int island : {0, 3, 8}) {
    EXPECT_FALSE(round_.IsComplete());
    EXPECT_EQ(Told(island).step, SumStep::kSharing);
    EXPECT_THAT(Share(island), IsOk());
  }
  EXPECT_TRUE(round_.IsComplete());
  EXPECT_THAT(round_.CloseStep(), IsOk());
  for (const int island : {8, 0, 3}) {
    EXPECT_THAT(round_.Expects(island), IsOk());
    EXPECT_THAT(round_.AddMasked(island, MaskedOf(island)), IsOk());
    EXPECT_THAT(round_.Expects(island), StatusIs(kTooLate));
  }
  EXPECT_TRUE(round_.IsComplete());
  EXPECT_THAT(round_.CloseStep(), IsOk());
  EXPECT_EQ(Told(3).summed, (std::vector<int32_t>{0, 3, 8}));
  for (const int island : {3, 8, 0}) EXPECT_THAT(round_.Reveal(island, RevealedBy(island)), IsOk());
  EXPECT_TRUE(round_.IsComplete());
  EXPECT_THAT(round_.CloseStep(), IsOk());
  ExpectSumOf({0, 3, 8});
}

// The step after which island 3 is lost: 1: it has advertised, 2: shared, 3: sent its vector.
class LostIslandTest : public SecureRoundTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostIslandTest, IsInTheSumOnlyWithItsVector) {
  const int last = GetParam();
  AdvertiseAll();
  for (const int island : {0, 3, 8}) {
    if (island != 3 || last >= 2) {
      EXPECT_THAT(Share(island), IsOk());
    }
  }
  if (last == 1) {
    EXPECT_FALSE(round_.IsComplete());
    round_.Lose(3);
    EXPECT_EQ(round_.StepOf(3), SumStep::kNone);
  }
  EXPECT_TRUE(round_.IsComplete());
  ASSERT_THAT(round_.CloseStep(), IsOk());
  for (const int island : {0, 8}) EXPECT_THAT(round_.AddMasked(island, MaskedOf(island)), IsOk());
  if (last == 3) {
    EXPECT_THAT(round_.AddMasked(3, MaskedOf(3)), IsOk());
  }
  // Closed at a deadline, without one that is there still.
  EXPECT_EQ(round_.IsComplete(), last != 2);
  ASSERT_THAT(round_.CloseStep(), IsOk());
  if (last == 2) {
    EXPECT_THAT(round_.AddMasked(3, ValuesOf(3)), StatusIs(kTooLate));
  }
  round_.Lose(3);
  for (const int island : {0, 8}) EXPECT_THAT(round_.Reveal(island, RevealedBy(island)), IsOk());
  ASSERT_TRUE(round_.IsComplete());
  ASSERT_THAT(round_.CloseStep(), IsOk());
  ExpectSumOf(last == 3 ? std::vector<int>{0, 3, 8} : std::vector<int>{0, 8});
}

INSTANTIATE_TEST_SUITE_P(Steps, LostIslandTest, ::testing::Values(1, 2, 3));

TEST_F(SecureRoundTest, WithTooFewItFailsAndSaysWhy) {
  AdvertiseAll();
  EXPECT_THAT(Share(0), IsOk());
  round_.Lose(3);
  round_.Lose(8);
  EXPECT_TRUE(round_.IsComplete());
  EXPECT_THAT(round_.CloseStep(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr("1 members have shared their keys")));
}

TEST_F(SecureRoundTest, WhoComesAgainHasOtherKeysAndWhoComesLateIsOut) {
  EXPECT_THAT(round_.Advertise(Member(0).advertisement()), IsOkAndHolds(true));
  EXPECT_THAT(round_.Advertise(Member(3).advertisement()), IsOkAndHolds(true));
  members_[0].reset();  // its connection was lost, and it begins anew
  EXPECT_THAT(round_.Advertise(Member(0).advertisement()), IsOkAndHolds(true));
  EXPECT_EQ(round_.members(), 2);
  ASSERT_THAT(round_.CloseStep(), IsOk());
  EXPECT_THAT(round_.Advertise(Member(8).advertisement()), IsOkAndHolds(false));
  EXPECT_EQ(Told(8).step, SumStep::kNone);
  EXPECT_THAT(Share(0), IsOk());
  EXPECT_THAT(Share(3), IsOk());
  ASSERT_THAT(round_.CloseStep(), IsOk());
  // One that begins anew now is out, and the sum fails without it.
  EXPECT_THAT(round_.Advertise(Member(3).advertisement()), IsOkAndHolds(false));
  EXPECT_THAT(round_.AddMasked(0, MaskedOf(0)), IsOk());
  EXPECT_THAT(round_.CloseStep(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SecureRoundTest, WhatNoHonestIslandSendsIsRefused) {
  EXPECT_THAT(round_.Advertise(Member(0).advertisement()), IsOkAndHolds(true));
  Advertisement copied = Member(0).advertisement();
  copied.member = 9;
  EXPECT_THAT(round_.Advertise(copied), StatusIs(kForged, HasSubstr("a key of island 0's")));
  Advertisement twice = Member(9).advertisement();
  twice.seal_key = twice.mask_key;
  EXPECT_THAT(round_.Advertise(twice), StatusIs(kForged));
  members_.erase(9);
  EXPECT_THAT(round_.Share(0, {}), StatusIs(kTooLate));
  EXPECT_THAT(round_.AddMasked(0, ValuesOf(0)), StatusIs(kTooLate));
  EXPECT_THAT(round_.Reveal(0, {}), StatusIs(kTooLate));
  AdvertiseAll();
  EXPECT_THAT(round_.Share(0, {}), StatusIs(kForged));
  EXPECT_THAT(round_.Share(7, {}), StatusIs(kTooLate));
  for (const int island : {0, 3, 8}) EXPECT_THAT(Share(island), IsOk());
  ASSERT_THAT(round_.CloseStep(), IsOk());
  for (const int island : {0, 3, 8})
    EXPECT_THAT(round_.AddMasked(island, MaskedOf(island)), IsOk());
  EXPECT_THAT(round_.AddMasked(0, ValuesOf(0)), StatusIs(kTooLate));
  ASSERT_THAT(round_.CloseStep(), IsOk());
  EXPECT_THAT(round_.Reveal(3, RevealedBy(0)), StatusIs(kForged, HasSubstr("another's name")));
  EXPECT_THAT(round_.Reveal(3, {3, {}, {}}), StatusIs(kForged));
}

TEST(SecureRoundLimitTest, ASumTakesNoMoreThanItsMost) {
  SecureRound round(1, 0, 2, 1);
  Advertisement advertisement;
  for (int island = 0; island <= kMostShares; ++island) {
    advertisement.member = island;
    advertisement.seal_key = RandomKey();
    advertisement.mask_key = RandomKey();
    EXPECT_THAT(round.Advertise(advertisement), IsOkAndHolds(island < kMostShares));
  }
  advertisement.member = 4;  // one that is in it may come again
  EXPECT_THAT(round.Advertise(advertisement), IsOkAndHolds(true));
}

}  // namespace
}  // namespace megatron
