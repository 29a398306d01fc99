#include "megatron/federated/privacy_accountant.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;

double Epsilon(double noise_multiplier, double rate, int64_t rounds, double delta) {
  PrivacyAccountant accountant;
  accountant.AddRounds(noise_multiplier, rate, rounds);
  return accountant.Epsilon(delta);
}

// The values of Google's dp-accounting 0.6.0 (RdpAccountant with its own orders, and
// get_epsilon_gaussian).
TEST(PrivacyAccountantTest, RoundsWithAllIslandsCostWhatDpAccountingSays) {
  EXPECT_NEAR(Epsilon(1, 1, 1, 1e-5), 4.728507067217623, 1e-9);
  EXPECT_NEAR(Epsilon(4, 1, 10, 1e-5), 3.617099772983339, 1e-9);
  EXPECT_NEAR(Epsilon(1, 1, 10, 1e-5), 19.05359753163139, 1e-9);
  EXPECT_NEAR(Epsilon(8, 1, 100, 1e-6), 6.734624610068334, 1e-9);
  EXPECT_NEAR(Epsilon(0.7, 1, 5, 1e-5), 19.304084835319795, 1e-9);
}

// The same, with whole orders.
TEST(PrivacyAccountantTest, SampledRoundsCostWhatDpAccountingSays) {
  EXPECT_NEAR(Epsilon(4, 0.01, 10000, 1e-5), 1.0354900660362436, 1e-7);
  EXPECT_NEAR(Epsilon(1.1, 256 / 60000.0, 14063, 1e-5), 2.5970795196566616, 1e-7);
  EXPECT_NEAR(Epsilon(2, 0.5, 20, 1e-5), 6.235225692712161, 1e-7);
}

TEST(PrivacyAccountantTest, DivergencesAreThoseOfDpAccounting) {
  EXPECT_NEAR(50 * GaussianRdp(2.5, 0.01, 5), 2.18075656e-03, 1e-10);
  EXPECT_NEAR(50 * GaussianRdp(2.5, 0.01, 50), 2.38460375e-02, 1e-9);
  EXPECT_NEAR(50 * GaussianRdp(2.5, 0.01, 100), 1.67416308e+02, 1e-5);
  EXPECT_DOUBLE_EQ(GaussianRdp(2, 1, 3), 3 / 8.0);
  EXPECT_EQ(GaussianRdp(2, 0, 3), 0);
}

// Abadi et al. 2016, section 3.2: q = 0.01, sigma = 4, 10000 steps and delta = 1e-5 cost 1.26, by
// an older and weaker rule from moments to epsilon.
TEST(PrivacyAccountantTest, MomentsGiveTheFigureOfThePaperOfDpSgd) {
  double least = 1e9;
  for (int order = 2; order <= 64; ++order) {
    least = std::min(least, 10000 * GaussianRdp(4, 0.01, order) - std::log(1e-5) / (order - 1));
  }
  EXPECT_NEAR(least, 1.26, 0.005);
}

TEST(PrivacyAccountantTest, ExactDeltaIsThatOfTheAnalyticGaussian) {
  EXPECT_NEAR(ExactGaussianDelta(3.7306316348159374, 1, 1), 1e-5, 1e-10);
  EXPECT_NEAR(ExactGaussianDelta(8.057618480725024, 1, 0.5), 1e-6, 1e-11);
  EXPECT_NEAR(ExactGaussianDelta(4, 10, 3.3414094692392506), 1e-5, 1e-10);
}

TEST(PrivacyAccountantTest, EpsilonIsNeverBelowTheExactOneAndCloseToIt) {
  for (const double noise : {0.5, 1.0, 2.0, 8.0}) {
    for (const int64_t rounds : {1, 10, 100}) {
      const double epsilon = Epsilon(noise, 1, rounds, 1e-6);
      EXPECT_LT(ExactGaussianDelta(noise, rounds, epsilon), 1e-6) << noise << " " << rounds;
      EXPECT_GT(ExactGaussianDelta(noise, rounds, 0.85 * epsilon), 1e-6) << noise << " " << rounds;
    }
  }
}

TEST(PrivacyBudgetTest, RoundsEndBeforeTheBudgetIsExceeded) {
  PrivacyBudget budget(4, 1e-5, 3.7);
  EXPECT_EQ(budget.epsilon(), 0);
  while (budget.MayTakeRound().ok()) budget.TakeRound();
  EXPECT_EQ(budget.rounds(), 10);  // 3.617; 11 rounds cost more than 3.7
  EXPECT_NEAR(budget.epsilon(), 3.617099772983339, 1e-9);
  EXPECT_THAT(budget.MayTakeRound(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(PrivacyBudget(0.5, 1e-5, 1).MayTakeRound(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(PrivacyBudget(4, 1e-5, 3).MayTakeRound(), IsOk());
}

TEST(PrivacyBudgetTest, ABudgetThatGoesOnIsTheSame) {
  PrivacyBudget whole(4, 1e-5, 3.7);
  for (int round = 0; round < 10; ++round) {
    const PrivacyBudget again(4, 1e-5, 3.7, round);
    EXPECT_EQ(again.epsilon(), whole.epsilon());
    EXPECT_EQ(again.MayTakeRound(), whole.MayTakeRound());
    whole.TakeRound();
  }
  EXPECT_THAT(PrivacyBudget(4, 1e-5, 3.7, 10).MayTakeRound(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace megatron
