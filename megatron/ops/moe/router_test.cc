#include "megatron/ops/moe/router.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr int64_t kTokens = 12, kExperts = 8;

// Logits of a token differ by at least 0.1, so a small step changes no choice.
HostTensor SpreadLogits() {
  HostTensor logits({kTokens, kExperts}, kF32);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t e = 0; e < kExperts; ++e)
      logits.Set(t * kExperts + e, 0.4 * static_cast<double>((e * 5 + t * 3 + t * t) % kExperts) -
                                       1 + 0.02 * static_cast<double>(t));
  }
  return logits;
}

struct NamedRouter {
  std::string name;
  Router router;
};

Router Make(RouterScore score, bool pre_softmax, int topk, float scaling, int groups = 1,
            int group_topk = 1) {
  Router router;
  router.score = score;
  router.pre_softmax = pre_softmax;
  router.topk = topk;
  router.scaling_factor = scaling;
  router.num_groups = groups;
  router.group_topk = group_topk;
  return router;
}

class RouterTest : public testing::TestWithParam<NamedRouter> {
 protected:
  const Router& router() const { return GetParam().router; }
  void Forward(const HostTensor& logits, const Tensor& bias) {
    RouterForward(stream_, router(), logits, bias, expert_, probability_);
  }

  // Checks the gradients for some choices and with weights of both losses.
  void ExpectGradients(RouterLosses losses);

  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
  HostTensor expert_ = HostTensor({kTokens, GetParam().router.topk}, DType::kInt32);
  HostTensor probability_ = HostTensor({kTokens, GetParam().router.topk}, kF32);
};

INSTANTIATE_TEST_SUITE_P(
    Routers, RouterTest,
    testing::Values(NamedRouter{"Mixtral", Make(RouterScore::kSoftmax, false, 2, 1)},
                    NamedRouter{"MixtralOfAll", Make(RouterScore::kSoftmax, false, 8, 1)},
                    NamedRouter{"Switch", Make(RouterScore::kSoftmax, true, 1, 1)},
                    NamedRouter{"PreSoftmax", Make(RouterScore::kSoftmax, true, 3, 2.5f)},
                    NamedRouter{"SigmoidOne", Make(RouterScore::kSigmoid, false, 1, 1)},
                    NamedRouter{"DeepSeek", Make(RouterScore::kSigmoid, false, 4, 2.5f, 4, 2)},
                    NamedRouter{"SoftmaxGroups", Make(RouterScore::kSoftmax, true, 2, 1, 4, 2)}),
    [](const auto& info) { return info.param.name; });

TEST_P(RouterTest, ChoosesTheBestAndWeighsThemAsDefined) {
  if (router().num_groups > 1) GTEST_SKIP();
  const HostTensor logits = SpreadLogits();
  Forward(logits, Tensor());
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto logit = [&](int64_t e) { return logits.Get(t * kExperts + e); };
    double all = 0, chosen = 0, sigmoids = 0;
    for (int64_t e = 0; e < kExperts; ++e) all += std::exp(logit(e));
    std::vector<bool> is_chosen(kExperts);
    for (int64_t i = t * router().topk; i < (t + 1) * router().topk; ++i) {
      const int64_t e = static_cast<int64_t>(expert_.Get(i));
      is_chosen[e] = true;
      chosen += std::exp(logit(e));
      sigmoids += 1 / (1 + std::exp(-logit(e)));
    }
    for (int64_t i = t * router().topk; i < (t + 1) * router().topk; ++i) {
      const double x = logit(static_cast<int64_t>(expert_.Get(i)));
      double want = std::exp(x) / (router().pre_softmax ? all : chosen);
      if (router().score == RouterScore::kSigmoid)
        want = 1 / (1 + std::exp(-x)) / (router().topk == 1 ? 1 : sigmoids);
      EXPECT_NEAR(probability_.Get(i), router().scaling_factor * want, 1e-5);
      for (int64_t e = 0; e < kExperts; ++e) {
        EXPECT_TRUE(is_chosen[e] || x > logit(e));
      }
    }
  }
}

void RouterTest::ExpectGradients(RouterLosses losses) {
  HostTensor logits = SpreadLogits();
  Forward(logits, Tensor());
  const HostTensor dprobability = HostTensor::Normal({kTokens, router().topk}, kF32, 3);
  HostTensor counts({3, kExperts}, DType::kInt64);
  for (int64_t i = 0; i < counts.numel(); ++i) counts.Set(i, static_cast<double>(i * 7 % 5));
  losses.counts_UE = counts;
  losses.balance_weight = 0.3f;
  losses.z_weight = 0.1f;
  const HostTensor dlogits = HostTensor::Normal({kTokens, kExperts}, kF32, 4);
  const HostTensor values({kTokens, 2}, kF32);
  const HostTensor unused({kTokens, kExperts}, kF32);
  RouterBackward(stream_, router(), logits, expert_, dprobability, losses, dlogits, values);
  ExpectNear(dlogits,
             FiniteDifference(&logits,
                              [&] {
                                Forward(logits, Tensor());
                                RouterBackward(stream_, router(), logits, expert_, dprobability,
                                               losses, unused, values);
                                double loss = Dot(probability_, dprobability);
                                for (int64_t t = 0; t < kTokens; ++t) {
                                  loss += losses.balance_weight * values.Get(2 * t) +
                                          losses.z_weight * values.Get(2 * t + 1);
                                }
                                return loss;
                              }),
             kFiniteDifferenceTolerance);
}

TEST_P(RouterTest, GradientsOfProbabilitiesAndLossesAreThoseOfFiniteDifferences) {
  RouterLosses losses;
  losses.units = {2, 5};  // units of 3, 5 and 4 of the tokens
  ExpectGradients(losses);
}

TEST_P(RouterTest, GradientsOfNumberedTokensInUnequalUnitsAreFiniteDifferences) {
  const HostTensor number =
      HostTensor::Of({kTokens}, DType::kInt32, {2, 2, 0, -1, 1, 1, 1, 0, 0, 0, -1, 0});
  const HostTensor share = HostTensor::Of({3}, kF32, {0.2, 1. / 3, 0.5});
  RouterLosses losses;
  losses.units.number_T = number;
  losses.share_U = share;
  ExpectGradients(losses);
}

TEST(RouterValuesTest, BalanceAndZAreTheSumsOfTheirDefinitions) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Router router = Make(score, false, 2, 1);
    const HostTensor logits = SpreadLogits();
    const HostTensor expert({kTokens, 2}, DType::kInt32), probability({kTokens, 2}, kF32);
    RouterForward(stream, router, logits, Tensor(), expert, probability);
    HostTensor counts({2, kExperts}, DType::kInt64);
    const RouterUnits units = {0, kTokens / 2};
    CountChoices(stream, expert, units, counts);
    double chosen = 0;
    for (const double count : counts.Values()) chosen += count;
    EXPECT_EQ(chosen, 2 * kTokens);

    RouterLosses losses;
    losses.counts_UE = counts;
    losses.units = units;
    const HostTensor values({kTokens, 2}, kF32), dlogits({kTokens, kExperts}, kF32);
    RouterBackward(stream, router, logits, expert, HostTensor({kTokens, 2}, kF32), losses, dlogits,
                   values);
    HostTensor sums({2}, kF32);
    AddRouterLosses(stream, values, 0.5, 0.25, sums);
    double balance = 0, z = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      double exponentials = 0, scores = 0, weighted = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        const double x = logits.Get(t * kExperts + e);
        const double s = score == RouterScore::kSoftmax ? std::exp(x) : 1 / (1 + std::exp(-x));
        exponentials += std::exp(x);
        scores += s;
        weighted += s * counts.Get(2 * t / kTokens * kExperts + e);
      }
      balance += weighted / scores;
      z += std::log(exponentials) * std::log(exponentials);
    }
    EXPECT_NEAR(sums.Get(0), 0.5 * balance, 1e-4);
    EXPECT_NEAR(sums.Get(1), 0.25 * z, 1e-4);
  }
}

// Samples of 2 and 4 tokens are interleaved, and one token is padding.
TEST(RouterValuesTest, NumberedTokensCountForTheirUnitByItsSize) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const HostTensor logits =
      HostTensor::Of({7, 2}, kF32, {0, 1, 1, 0, 2, 0, 0, 0, 3, 1, 0, 2, 1, 1});
  const HostTensor number = HostTensor::Of({7}, DType::kInt32, {1, 0, 1, -1, 1, 0, 1});
  const HostTensor expert = HostTensor::Of({7, 1}, DType::kInt32, {1, 0, 0, 0, 0, 1, 0});
  const HostTensor counts({2, 2}, DType::kInt64), all({1, 2}, DType::kInt64);
  CountChoices(stream, expert, {0, 1, number}, counts);
  EXPECT_EQ(counts.Values(), (std::vector<double>{1, 1, 3, 1}));
  CountChoices(stream, expert, {0, 2, number}, all);
  EXPECT_EQ(all.Values(), (std::vector<double>{4, 2}));

  RouterLosses losses;
  const HostTensor share = HostTensor::Of({2}, kF32, {0.5, 0.25});
  losses.counts_UE = counts;
  losses.units.number_T = number;
  losses.share_U = share;
  const HostTensor values({7, 2}, kF32), dlogits({7, 2}, kF32);
  RouterBackward(stream, Make(RouterScore::kSoftmax, true, 1, 1), logits, expert,
                 HostTensor({7, 1}, kF32), losses, dlogits, values);
  const double want = 1 / (1 + std::exp(-2.0));  // score of the third token for its first expert
  EXPECT_NEAR(values.Get(4), (3 * want + (1 - want)) / 16, 1e-6);
  EXPECT_NEAR(values.Get(5), std::pow(2 - std::log(want), 2) / 4, 1e-5);
  EXPECT_EQ(values.Get(6), 0);
  EXPECT_EQ(values.Get(7), 0);
  EXPECT_EQ(dlogits.Get(6), 0);
}

TEST(RouterChoiceTest, MarginsAreCountedInBins) {
  constexpr int64_t kTokens = 40, kExperts = 6, kBins = 50;
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  const HostTensor logits = HostTensor::Normal({kTokens, kExperts}, kF32, 1);
  const HostTensor bias = HostTensor::Of({kExperts}, kF32, {0.3, -0.2, 0, 0.1, -0.4, 0.25});
  const HostTensor best({kTokens, 3}, DType::kInt32), counts({kExperts, kBins}, DType::kInt64);
  RouterForward(stream, Make(RouterScore::kSigmoid, false, 3, 1), logits, bias, best,
                HostTensor({kTokens, 3}, kF32));
  CountMargins(stream, logits, bias, best, counts);
  std::vector<double> want(kExperts * kBins);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> scores, biased;
    for (int64_t e = 0; e < kExperts; ++e) {
      scores.push_back(1 / (1 + std::exp(-logits.Get(t * kExperts + e))));
      biased.push_back(scores.back() + bias.Get(e));
    }
    std::sort(biased.begin(), biased.end());
    const double cutoff = biased[kExperts - 3];
    for (int64_t e = 0; e < kExperts; ++e) {
      const double at = (cutoff - scores[e] + 1.4) / 2.7 * kBins;
      ++want[e * kBins + std::clamp<int64_t>(static_cast<int64_t>(at), 0, kBins - 1)];
    }
  }
  EXPECT_EQ(counts.Values(), want);
}

TEST(RouterChoiceTest, TheSmallerNumberWinsAmongEqualScores) {
  ThreadPool pool(1);
  const HostTensor logits({1, 6}, kF32), expert({1, 3}, DType::kInt32), probability({1, 3}, kF32);
  RouterForward(Stream::Cpu(&pool), Make(RouterScore::kSoftmax, false, 3, 1), logits, Tensor(),
                expert, probability);
  EXPECT_EQ(expert.Values(), (std::vector<double>{0, 1, 2}));
}

TEST(RouterChoiceTest, BiasDecidesTheChoiceAndNotTheProbability) {
  ThreadPool pool(1);
  const HostTensor logits = HostTensor::Of({1, 4}, kF32, {2, 1, 0, -1});
  const HostTensor bias = HostTensor::Of({4}, kF32, {-1, 0, 0, 1});
  const HostTensor expert({1, 2}, DType::kInt32), probability({1, 2}, kF32);
  RouterForward(Stream::Cpu(&pool), Make(RouterScore::kSigmoid, false, 2, 1), logits, bias, expert,
                probability);
  EXPECT_EQ(expert.Values(), (std::vector<double>{3, 1}));
  const double a = 1 / (1 + std::exp(1.0)), b = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(probability.Get(0), a / (a + b), 1e-6);
}

TEST(RouterChoiceTest, ExpertsComeFromTheBestGroups) {
  ThreadPool pool(1);
  // The best single expert (number 0) is in a group that is not among the two best.
  const HostTensor logits = HostTensor::Of({1, 8}, kF32, {9, -9, 5, 5, 4, 6, 0, 0});
  const HostTensor expert({1, 4}, DType::kInt32), probability({1, 4}, kF32);
  RouterForward(Stream::Cpu(&pool), Make(RouterScore::kSoftmax, false, 4, 1, 4, 2), logits,
                Tensor(), expert, probability);
  EXPECT_EQ(expert.Values(), (std::vector<double>{5, 2, 3, 4}));
}

// DeepSeek-V2 takes the groups with the best single experts, numbers 0 and 5 here.
TEST(RouterChoiceTest, AGroupsScoreMayBeThatOfItsBestExpert) {
  ThreadPool pool(1);
  const HostTensor logits = HostTensor::Of({1, 8}, kF32, {9, -9, 5, 5, 4, 6, 0, 0});
  const HostTensor expert({1, 4}, DType::kInt32), probability({1, 4}, kF32);
  Router router = Make(RouterScore::kSoftmax, true, 4, 1, 4, 2);
  router.group_score_topk = 1;
  RouterForward(Stream::Cpu(&pool), router, logits, Tensor(), expert, probability);
  EXPECT_EQ(expert.Values(), (std::vector<double>{0, 5, 4, 1}));
}

TEST(DropOverCapacityTest, KeepsOfEachUnitAndExpertTheMostProbableOrTheFirst) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const std::vector<double> chosen = {0, 1, 0, 2, 0, 1, /*second unit*/ 0, 1, 1, 0, 1, 2};
  const HostTensor probability =
      HostTensor::Of({6, 2}, kF32, {0.1, 0.9, 0.6, 0.4, 0.6, 0.4, 0.5, 0.5, 0.3, 0.7, 0.8, 0.2});
  HostTensor expert = HostTensor::Of({6, 2}, DType::kInt32, chosen);
  DropOverCapacity(stream, DropPolicy::kProbability, 1, {0, 3}, probability, expert);
  EXPECT_EQ(expert.Values(), (std::vector<double>{-1, 1, 0, 2, -1, -1, -1, -1, -1, 0, 1, 2}));
  expert = HostTensor::Of({6, 2}, DType::kInt32, chosen);
  DropOverCapacity(stream, DropPolicy::kPosition, 1, {0, 3}, probability, expert);
  EXPECT_EQ(expert.Values(), (std::vector<double>{0, 1, -1, 2, -1, -1, 0, 1, -1, -1, -1, 2}));
  expert = HostTensor::Of({6, 2}, DType::kInt32, chosen);
  DropOverCapacity(stream, DropPolicy::kProbability, 3, {0, 3}, probability, expert);
  EXPECT_EQ(expert.Values(), chosen);
}

}  // namespace
}  // namespace megatron::ops
