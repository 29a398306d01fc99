#include "megatron/generate/token_scores.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(TokenScoresTest, LogprobsAreThoseOfTheSoftmax) {
  const std::vector<float> logits = {90.0f, 92.5f, 91.0f, 92.5f, -5.0f, 1000.0f};
  double sum = 0;
  for (int i = 0; i < 5; ++i) sum += std::exp(double{logits[i]} - 92.5);
  const TokenScores scores(logits.data(), 5);  // without the padding behind the vocabulary
  for (int i = 0; i < 5; ++i)
    EXPECT_NEAR(scores.Logprob(i), double{logits[i]} - 92.5 - std::log(sum), 2e-6) << i;
}

TEST(TokenScoresTest, TheLikeliestComeFirstAndTiesInOrder) {
  const std::vector<float> logits = {0.0f, 2.5f, 1.0f, 2.5f, -1.0f};
  const TokenScores scores(logits.data(), 5);
  const ScoredToken third = scores.Score(3, 4);
  EXPECT_EQ(third.token, 3);
  EXPECT_TRUE(third.is_greedy);
  ASSERT_EQ(third.top.size(), 4u);
  const std::vector<int32_t> order = {1, 3, 2, 0};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(third.top[i].token, order[i]);
    EXPECT_EQ(third.top[i].logprob, scores.Logprob(order[i]));
  }
  EXPECT_EQ(third.logprob, third.top[0].logprob);
  EXPECT_FALSE(scores.Score(2, 0).is_greedy);
  EXPECT_TRUE(scores.Score(2, 0).top.empty());
  EXPECT_EQ(scores.Score(2, 100).top.size(), 5u);
}

TEST(TokenScoresTest, AWideVocabularyKeepsItsDigits) {
  std::vector<float> logits(50000);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 977) * 0.013f;
    sum += std::exp(double{logits[i]});
  }
  const TokenScores scores(logits.data(), 50000);
  for (int32_t token : {0, 976, 49999}) {
    const double want = double{logits[token]} - std::log(sum);
    EXPECT_NEAR(scores.Logprob(token), want, 2e-7 * std::abs(want)) << token;
  }
}

}  // namespace
}  // namespace megatron
