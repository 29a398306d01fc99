#include "megatron/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

// One rank's part of a cross-entropy: columns [first, first + columns) of `vocab_size` and padding.
struct Part {
  VocabRange range;
  HostTensor logits, labels, weight, max, sum, target, loss;

  Part(const HostTensor& all_logits, const HostTensor& all_labels, int64_t vocab_size,
       int64_t first, int64_t columns)
      : range{first, vocab_size},
        logits({Tokens(all_logits), columns}, all_logits.tensor().dtype()),
        labels({Tokens(all_logits)}, DType::kInt32),
        weight({Tokens(all_logits)}, DType::kFloat32),
        max({Tokens(all_logits)}, DType::kFloat32),
        sum({Tokens(all_logits)}, DType::kFloat32),
        target({Tokens(all_logits)}, DType::kFloat32),
        loss({Tokens(all_logits)}, DType::kFloat32) {
    for (int64_t t = 0; t < Tokens(all_logits); ++t) {
      labels.Set(t, all_labels.Get(t));
      weight.Set(t, 0.25 * t);
      for (int64_t c = 0; c < columns; ++c) {
        logits.Set(t * columns + c, all_logits.Get(t * all_logits.tensor().dim(1) + first + c));
      }
    }
  }

  static int64_t Tokens(const HostTensor& logits) { return logits.tensor().dim(0); }

  void Statistics(ThreadPool* pool) {
    CrossEntropyStatistics(Stream::Cpu(pool), logits, labels, range, max, sum, target);
  }
  void Loss(ThreadPool* pool) { CrossEntropyLoss(Stream::Cpu(pool), max, sum, target, loss); }
  void Backward(ThreadPool* pool) {
    CrossEntropyBackward(Stream::Cpu(pool), logits, labels, range, max, sum, weight);
  }
  void AtOnce(ThreadPool* pool) {
    CrossEntropy(Stream::Cpu(pool), logits, labels, range, weight, loss, Tensor());
  }
};

// The labels are spread over the vocabulary and include its first and last column.
HostTensor Labels(int64_t tokens, int64_t vocab_size) {
  HostTensor labels({tokens}, DType::kInt32);
  for (int64_t t = 0; t < tokens; ++t) {
    labels.Set(t, t % 3 == 0 ? vocab_size - 1 : t * 7919 % vocab_size);
  }
  return labels;
}

struct Reference {
  std::vector<double> loss, gradient;

  explicit Reference(const Part& p) : loss(p.loss.numel()), gradient(p.logits.numel()) {
    const int64_t columns = p.logits.tensor().dim(1);
    for (size_t t = 0; t < loss.size(); ++t) {
      const int64_t label = p.labels.Get(t);
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t c = 0; c < p.range.vocab_size; ++c) {
        max = std::max(max, p.logits.Get(t * columns + c));
      }
      for (int64_t c = 0; c < p.range.vocab_size; ++c) {
        sum += std::exp(p.logits.Get(t * columns + c) - max);
      }
      loss[t] = std::log(sum) + max - p.logits.Get(t * columns + label);
      for (int64_t c = 0; c < p.range.vocab_size; ++c) {
        const double softmax = std::exp(p.logits.Get(t * columns + c) - max) / sum;
        gradient[t * columns + c] = p.weight.Get(t) * (softmax - (c == label ? 1 : 0));
      }
    }
  }
};

class CrossEntropyTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(CrossEntropyTest, ComputesTheFormula) {
  for (const auto& [tokens, vocab_size, columns] : {std::array{1, 1, 1},
                                                    {4, 5, 5},
                                                    {3, 17, 32},
                                                    {5, 1000, 1024},
                                                    {4, 1024, 1024},
                                                    {6, 4999, 5120}}) {
    const HostTensor logits = HostTensor::Normal({tokens, columns}, GetParam(), 1);
    Part p(logits, Labels(tokens, vocab_size), vocab_size, 0, columns);
    const Reference want(p);
    p.Statistics(&pool_);
    p.Loss(&pool_);
    for (int64_t t = 0; t < tokens; ++t) {
      EXPECT_NEAR(p.loss.Get(t), want.loss[t], 4e-6) << vocab_size;
    }
    p.Backward(&pool_);
    if (vocab_size == 1) continue;  // the gradient is zero except for rounding
    ExpectNear(p.logits, want.gradient, 2 * OpTolerance(GetParam()));
  }
}

TEST_P(CrossEntropyTest, AHitIsALabelThatNothingIsLikelierThan) {
  const HostTensor logits = HostTensor::Of({3, 4}, GetParam(),
                                           {1, 3, 2, 9,  //
                                            4, 3, 2, 9,  //
                                            1, 2, 2, 9});
  Part p(logits, HostTensor::Of({3}, DType::kInt32, {1, 1, 2}), /*vocab_size=*/3, 0, 4);
  p.Statistics(&pool_);
  const HostTensor hit({3}, DType::kFloat32);
  CrossEntropyHits(Stream::Cpu(&pool_), p.max, p.target, hit);
  EXPECT_EQ(hit.Values(), std::vector<double>({1, 0, 1}));
}

TEST_P(CrossEntropyTest, TwoHalvesOfTheVocabularyAreTheWhole) {
  const int64_t tokens = 7, vocab_size = 3001, columns = 3072, half = columns / 2;
  const HostTensor logits = HostTensor::Normal({tokens, columns}, GetParam(), 2);
  const HostTensor labels = Labels(tokens, vocab_size);
  Part whole(logits, labels, vocab_size, 0, columns);
  const Reference want(whole);
  std::vector<Part> parts;
  parts.emplace_back(logits, labels, vocab_size, 0, half);
  parts.emplace_back(logits, labels, vocab_size, half, half);
  for (Part& part : parts) part.Statistics(&pool_);
  HostTensor max({tokens}, DType::kFloat32);
  for (int64_t t = 0; t < tokens; ++t) {
    max.Set(t, std::max(parts[0].max.Get(t), parts[1].max.Get(t)));
  }
  for (Part& part : parts) RescaleSum(Stream::Cpu(&pool_), part.max, max, part.sum);
  for (int64_t t = 0; t < tokens; ++t) {
    const double sum = parts[0].sum.Get(t) + parts[1].sum.Get(t);
    const double target = parts[0].target.Get(t) + parts[1].target.Get(t);
    for (Part& part : parts) {
      part.max.Set(t, max.Get(t));
      part.sum.Set(t, sum);
      part.target.Set(t, target);
    }
  }
  for (Part& part : parts) {
    part.Loss(&pool_);
    part.Backward(&pool_);
    for (int64_t t = 0; t < tokens; ++t) EXPECT_NEAR(part.loss.Get(t), want.loss[t], 4e-6);
    std::vector<double> gradient;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto begin = want.gradient.begin() + t * columns + part.range.first_column;
      gradient.insert(gradient.end(), begin, begin + half);
    }
    ExpectNear(part.logits, gradient, 2 * OpTolerance(GetParam()));
  }
}

TEST_P(CrossEntropyTest, ExtremeLogitsStayFinite) {
  const double large = GetParam() == DType::kFloat16 ? 6e4 : 1e30;
  const HostTensor logits = HostTensor::Of({2, 20}, GetParam(), [&] {
    std::vector<double> values(40, -large);
    values[3] = values[25] = large;
    values[5] = -std::numeric_limits<double>::infinity();
    return values;
  }());
  Part p(logits, HostTensor::Of({2}, DType::kInt32, {3, 4}), 20, 0, 20);
  p.Statistics(&pool_);
  p.Loss(&pool_);
  EXPECT_EQ(p.loss.Get(0), 0);
  EXPECT_EQ(p.loss.Get(1), 2 * p.max.Get(1));
  p.Backward(&pool_);
  for (double x : p.logits.Values()) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(CrossEntropyTest, PaddingNeverCountsWhateverItHolds) {
  HostTensor logits = HostTensor::Normal({2, 64}, GetParam(), 3);
  for (int64_t c = 50; c < 64; ++c) logits.Set(c, c % 2 == 0 ? std::nan("") : 6e4);
  Part p(logits, Labels(2, 50), 50, 0, 64);
  const Reference want(p);
  p.Statistics(&pool_);
  p.Loss(&pool_);
  EXPECT_NEAR(p.loss.Get(0), want.loss[0], 4e-6);
  p.Backward(&pool_);
  for (int64_t c = 50; c < 64; ++c) EXPECT_EQ(p.logits.Get(64 + c), 0);
}

TEST_P(CrossEntropyTest, NotANumberReachesTheLoss) {
  HostTensor logits = HostTensor::Normal({2, 2000}, GetParam(), 3);
  logits.Set(700, std::nan(""));
  Part p(logits, Labels(2, 2000), 2000, 0, 2000);
  p.Statistics(&pool_);
  p.Loss(&pool_);
  EXPECT_TRUE(std::isnan(p.loss.Get(0)));
  EXPECT_TRUE(std::isfinite(p.loss.Get(1)));
}

TEST_P(CrossEntropyTest, WeightZeroGivesGradientZero) {
  HostTensor logits = HostTensor::Normal({1, 40}, GetParam(), 3);
  logits.Set(7, std::nan(""));
  Part p(logits, HostTensor::Of({1}, DType::kInt32, {-100}), 40, 0, 40);
  p.Statistics(&pool_);
  EXPECT_EQ(p.target.Get(0), 0);
  p.Backward(&pool_);
  for (double x : p.logits.Values()) EXPECT_EQ(x, 0);
}

TEST_P(CrossEntropyTest, OneOpHasTheBitsOfItsParts) {
  const Stream stream = Stream::Cpu(&pool_);
  for (const auto& [vocab_size, columns] :
       {std::array{1, 1}, {5, 5}, {17, 32}, {2400, 2500}, {4999, 5120}}) {
    for (const float softcap : {0.0f, 5.0f}) {
      const HostTensor logits = HostTensor::Normal({6, columns}, GetParam(), 1),
                       labels = Labels(6, vocab_size), hit({6}, DType::kFloat32),
                       hit_at_once({6}, DType::kFloat32);
      Part parts(logits, labels, vocab_size, 0, columns),
          at_once(logits, labels, vocab_size, 0, columns);
      parts.Statistics(&pool_);
      parts.Loss(&pool_);
      CrossEntropyHits(stream, parts.max, parts.target, hit);
      CrossEntropyBackward(stream, parts.logits, labels, parts.range, parts.max, parts.sum,
                           parts.weight, softcap);
      CrossEntropy(stream, at_once.logits, labels, at_once.range, at_once.weight, at_once.loss,
                   hit_at_once, softcap);
      EXPECT_EQ(at_once.loss.Bytes(), parts.loss.Bytes()) << vocab_size;
      EXPECT_EQ(hit_at_once.Bytes(), hit.Bytes()) << vocab_size;
      EXPECT_EQ(at_once.logits.Bytes(), parts.logits.Bytes()) << vocab_size;
    }
  }
}

TEST_P(CrossEntropyTest, WithoutWeightsTheLogitsStay) {
  const HostTensor logits = HostTensor::Normal({4, 64}, GetParam(), 1);
  Part p(logits, Labels(4, 50), 50, 0, 64);
  const Reference want(p);
  CrossEntropy(Stream::Cpu(&pool_), p.logits, p.labels, p.range, Tensor(), p.loss, Tensor());
  for (int64_t t = 0; t < 4; ++t) EXPECT_NEAR(p.loss.Get(t), want.loss[t], 4e-6);
  EXPECT_EQ(p.logits.Bytes(), logits.Bytes());
}

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropyTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(CrossEntropyRankTest, ARankWithOnlyPaddingAddsNothing) {
  ThreadPool pool(1);
  const HostTensor logits = HostTensor::Normal({3, 32}, DType::kFloat32, 3);
  Part p(logits, Labels(3, 10), 10, 16, 16);
  p.Statistics(&pool);
  const HostTensor max = HostTensor::Of({3}, DType::kFloat32, {1, 2, 3});
  RescaleSum(Stream::Cpu(&pool), p.max, max, p.sum);
  for (int64_t t = 0; t < 3; ++t) {
    EXPECT_EQ(p.max.Get(t), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(p.sum.Get(t), 0);
    EXPECT_EQ(p.target.Get(t), 0);
  }
}

TEST(CrossEntropyGradientTest, GradientIsAFiniteDifference) {
  ThreadPool pool(1);
  Part p(HostTensor::Normal({4, 12}, DType::kFloat32, 5), Labels(4, 11), 11, 0, 12);
  const auto loss = [&] {
    p.Statistics(&pool);
    p.Loss(&pool);
    return Dot(p.loss, p.weight);
  };
  const std::vector<double> want = FiniteDifference(&p.logits, loss);
  loss();
  p.Backward(&pool);
  ExpectNear(p.logits, want, kFiniteDifferenceTolerance);
}

TEST(CrossEntropyBitsTest, BitsDoNotDependOnTheNumberOfThreads) {
  const HostTensor logits = HostTensor::Normal({9, 2500}, DType::kBFloat16, 6);
  ThreadPool one(1), many(5);
  Part want(logits, Labels(9, 2400), 2400, 0, 2500), got(logits, Labels(9, 2400), 2400, 0, 2500);
  want.Statistics(&one);
  want.Backward(&one);
  got.Statistics(&many);
  got.Backward(&many);
  EXPECT_EQ(got.sum.Bytes(), want.sum.Bytes());
  EXPECT_EQ(got.logits.Bytes(), want.logits.Bytes());
  Part at_once(logits, Labels(9, 2400), 2400, 0, 2500);
  at_once.AtOnce(&many);
  want.Loss(&one);
  EXPECT_EQ(at_once.loss.Bytes(), want.loss.Bytes());
  EXPECT_EQ(at_once.logits.Bytes(), want.logits.Bytes());
}

TEST(CrossEntropyMemoryTest, NothingIsAllocated) {
  ThreadPool pool(2);
  Part p(HostTensor::Normal({9, 2500}, DType::kBFloat16, 6), Labels(9, 2400), 2400, 0, 2500);
  p.Statistics(&pool);
  const int64_t before = AllocationCount();
  p.Statistics(&pool);
  p.Loss(&pool);
  p.Backward(&pool);
  p.AtOnce(&pool);
  EXPECT_EQ(AllocationCount(), before);
}

TEST(CrossEntropyCapTest, GradientsOfWhatIsCappedAreFiniteDifferences) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  constexpr int64_t kTokens = 3, kVocabulary = 19, kColumns = 24;
  constexpr float kCap = 1.5f;
  HostTensor logits = HostTensor::Normal({kTokens, kColumns}, DType::kFloat32, 3);
  const auto capped = [&] {
    const HostTensor copy = HostTensor::Of({kTokens, kColumns}, DType::kFloat32, logits.Values());
    SoftCap(stream, kCap, copy);
    return Part(copy, Labels(kTokens, kVocabulary), kVocabulary, 0, kColumns);
  };
  const auto loss = [&] {
    Part p = capped();
    p.Statistics(&pool);
    p.Loss(&pool);
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) sum += p.weight.Get(t) * p.loss.Get(t);
    return sum;
  };
  const std::vector<double> want = FiniteDifference(&logits, loss);
  Part p = capped();
  p.Statistics(&pool);
  CrossEntropyBackward(stream, p.logits, p.labels, p.range, p.max, p.sum, p.weight, kCap);
  ExpectNear(p.logits, want, kFiniteDifferenceTolerance);
}

TEST(CrossEntropyMetaTest, ShapesAreCheckedAndNothingRuns) {
  const Device meta = {DeviceType::kMeta, 0};
  const Tensor logits(nullptr, DType::kBFloat16, {4, 8}, meta),
      labels(nullptr, DType::kInt32, {4}, meta);
  const Tensor row(nullptr, DType::kFloat32, {4}, meta), wrong(nullptr, DType::kFloat32, {5}, meta);
  CrossEntropyStatistics(Stream::Meta(), logits, labels, {0, 8}, row, row, row);
  RescaleSum(Stream::Meta(), row, row, row);
  CrossEntropyLoss(Stream::Meta(), row, row, row, row);
  CrossEntropyBackward(Stream::Meta(), logits, labels, {0, 8}, row, row, row);
  CrossEntropy(Stream::Meta(), logits, labels, {0, 8}, row, row, row);
  CrossEntropy(Stream::Meta(), logits, labels, {0, 8}, Tensor(), row, Tensor());
  EXPECT_DEATH(CrossEntropyLoss(Stream::Meta(), row, row, row, wrong), "");
  EXPECT_DEATH(CrossEntropy(Stream::Meta(), logits, labels, {0, 8}, wrong, row, row), "");
  EXPECT_DEATH(CrossEntropy(Stream::Meta(), logits, labels, {8, 16}, row, row, row), "");
  EXPECT_DEATH(CrossEntropy(Stream::Meta(), logits, labels, {0, 16}, row, row, row), "");
}

}  // namespace
}  // namespace megatron::ops
