#include "megatron/ops/moe/permute.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 9, kChoices = 2, kExperts = 4;

// Two different experts for each token; every fourth second choice is dropped.
HostTensor Choices() {
  HostTensor expert({kTokens, kChoices}, DType::kInt32);
  for (int64_t t = 0; t < kTokens; ++t) {
    expert.Set(2 * t, static_cast<double>(t * t % kExperts));
    expert.Set(2 * t + 1, t % 4 == 3 ? -1 : static_cast<double>((t * t + 1 + t % 3) % kExperts));
  }
  return expert;
}

struct Placed {
  explicit Placed(int64_t experts_at_once, int64_t copies, int64_t parts = 1)
      : place({kTokens, kChoices, copies}, DType::kInt32),
        counts({kExperts / experts_at_once, copies, experts_at_once}, DType::kInt64) {
    ThreadPool pool(1);
    PlaceByExpert(Stream::Cpu(&pool), Choices(), place, counts, /*padded=*/0, parts);
    for (const double count : counts.Values()) rows += static_cast<int64_t>(count);
  }
  HostTensor place, counts;
  int64_t rows = 0;
};

class PermuteTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST(PlaceByExpertTest, PaddingGivesEveryExpertTheSameNumberOfRows) {
  constexpr int64_t kPadded = 10, kCopies = 2;
  const HostTensor expert = Choices(), place({kTokens, kChoices, kCopies}, DType::kInt32),
                   counts({2, kCopies, 2}, DType::kInt64);
  ThreadPool pool(1);
  PlaceByExpert(Stream::Cpu(&pool), expert, place, counts, kPadded);
  EXPECT_EQ(counts.Values(), std::vector<double>(8, kPadded));
  std::vector<double> want(place.numel(), -1), taken(kExperts);
  for (int64_t i = 0; i < expert.numel(); ++i) {
    const auto e = static_cast<int64_t>(expert.Get(i));
    if (e < 0) continue;
    for (int64_t c = 0; c < kCopies; ++c) {
      const int64_t begin = ((e / 2 * kCopies + c) * 2 + e % 2) * kPadded;
      want[i * kCopies + c] = static_cast<double>(begin) + taken[e];
    }
    ++taken[e];
  }
  EXPECT_EQ(place.Values(), want);
}

TEST(PlaceByExpertTest, OrdersByRankCopyExpertAndToken) {
  const HostTensor expert = Choices();
  for (const int64_t experts_at_once : {1, 2, 4}) {
    for (const int64_t copies : {1, 3}) {
      const Placed placed(experts_at_once, copies);
      // The order, written out.
      std::vector<double> want(placed.place.numel(), -1);
      std::vector<double> counts;
      int64_t next = 0;
      for (int64_t first = 0; first < kExperts; first += experts_at_once) {
        for (int64_t c = 0; c < copies; ++c) {
          for (int64_t e = first; e < first + experts_at_once; ++e) {
            const int64_t begin = next;
            for (int64_t i = 0; i < expert.numel(); ++i) {
              if (expert.Get(i) == e) want[i * copies + c] = static_cast<double>(next++);
            }
            counts.push_back(static_cast<double>(next - begin));
          }
        }
      }
      EXPECT_EQ(placed.place.Values(), want);
      EXPECT_EQ(placed.counts.Values(), counts);
    }
  }
}

// Three experts make parts of two and of one.
TEST(PlaceByExpertTest, WithPartsTheFirstPartOfEachRankComesBeforeTheSecond) {
  const HostTensor expert = Choices();
  for (const auto& [at_once, first] :
       std::vector<std::pair<int64_t, int64_t>>{{4, 2}, {2, 1}, {1, 1}}) {
    EXPECT_EQ(FirstOfPart(1, 2, at_once), first);
    EXPECT_EQ(FirstOfPart(2, 2, at_once), at_once);
    for (const int64_t copies : {1, 3}) {
      const Placed whole(at_once, copies), placed(at_once, copies, /*parts=*/2);
      std::vector<double> want(placed.place.numel(), -1);
      int64_t next = 0;
      for (const auto& [begin, end] : {std::pair(int64_t{0}, first), std::pair(first, at_once)}) {
        for (int64_t rank = 0; rank < kExperts / at_once; ++rank) {
          for (int64_t c = 0; c < copies; ++c) {
            for (int64_t e = begin; e < end; ++e) {
              for (int64_t i = 0; i < expert.numel(); ++i) {
                if (expert.Get(i) == static_cast<double>(rank * at_once + e))
                  want[i * copies + c] = static_cast<double>(next++);
              }
            }
          }
        }
      }
      EXPECT_EQ(placed.place.Values(), want);
      EXPECT_EQ(placed.counts.Values(), whole.counts.Values());
    }
  }
  EXPECT_EQ(FirstOfPart(1, 2, 3), 2);
}

TEST(PlaceByExpertTest, PaddedExpertsHaveTheirRowsInTheirPart) {
  constexpr int64_t kPadded = 10;
  const HostTensor place({kTokens, kChoices, 1}, DType::kInt32), counts({2, 1, 2}, DType::kInt64);
  ThreadPool pool(1);
  PlaceByExpert(Stream::Cpu(&pool), Choices(), place, counts, kPadded, /*parts=*/2);
  EXPECT_EQ(counts.Values(), std::vector<double>(4, kPadded));
  // Experts 0 and 2 are the first ones of their ranks.
  constexpr int64_t kBegins[] = {0, 2 * kPadded, kPadded, 3 * kPadded};
  const HostTensor expert = Choices();
  for (int64_t i = 0; i < expert.numel(); ++i) {
    const auto e = static_cast<int64_t>(expert.Get(i));
    if (e < 0) continue;
    EXPECT_GE(place.Get(i), static_cast<double>(kBegins[e]));
    EXPECT_LT(place.Get(i), static_cast<double>(kBegins[e] + kPadded));
  }
}

TEST_P(PermuteTest, UnpermuteWeighsWhatPermuteSpread) {
  for (const int64_t columns : {1, 20, 130}) {
    const Placed placed(2, 2);
    const HostTensor x = HostTensor::Normal({kTokens, columns}, GetParam(), 1);
    const HostTensor rows = HostTensor::Normal({placed.rows, columns}, GetParam(), 2);
    const HostTensor y = HostTensor::Normal({kTokens, columns}, GetParam(), 3);
    const HostTensor probability = HostTensor::Normal({kTokens, kChoices}, DType::kFloat32, 4);
    Permute(stream_, x, placed.place, rows);
    Unpermute(stream_, rows, placed.place, probability, y);
    std::vector<double> want(y.numel());
    for (int64_t i = 0; i < y.numel(); ++i) {
      for (int64_t k = 0; k < kChoices; ++k) {
        const int64_t choice = i / columns * kChoices + k;
        if (Choices().Get(choice) >= 0) want[i] += 2 * probability.Get(choice) * x.Get(i);
      }
    }
    ExpectNear(y, want, OpTolerance(GetParam()));
  }
}

TEST_P(PermuteTest, BackwardSumsWhatForwardSpread) {
  const Placed placed(4, 2);
  const HostTensor dout = HostTensor::Normal({placed.rows, 37}, GetParam(), 1);
  const HostTensor dx = HostTensor::Normal({kTokens, 37}, GetParam(), 2);
  PermuteBackward(stream_, dout, placed.place, dx);
  std::vector<double> want(dx.numel());
  for (int64_t i = 0; i < dx.numel(); ++i) {
    for (int64_t p = 0; p < kChoices * 2; ++p) {
      const auto row = static_cast<int64_t>(placed.place.Get(i / 37 * kChoices * 2 + p));
      if (row >= 0) want[i] += dout.Get(row * 37 + i % 37);
    }
  }
  ExpectNear(dx, want, OpTolerance(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(DTypes, PermuteTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST_F(PermuteTest, GradientsOfUnpermuteAreThoseOfFiniteDifferences) {
  const Placed placed(2, 2);
  HostTensor rows = HostTensor::Normal({placed.rows, 5}, DType::kFloat32, 1);
  HostTensor probability = HostTensor::Normal({kTokens, kChoices}, DType::kFloat32, 2);
  const HostTensor dy = HostTensor::Normal({kTokens, 5}, DType::kFloat32, 3);
  const HostTensor y({kTokens, 5}, DType::kFloat32);
  const HostTensor drows = HostTensor::Normal({placed.rows, 5}, DType::kFloat32, 4);
  const HostTensor dprobability = HostTensor::Normal({kTokens, kChoices}, DType::kFloat32, 5);
  UnpermuteBackward(stream_, dy, rows, placed.place, probability, drows, dprobability);
  const auto loss = [&] {
    Unpermute(stream_, rows, placed.place, probability, y);
    return Dot(y, dy);
  };
  ExpectNear(drows, FiniteDifference(&rows, loss), kFiniteDifferenceTolerance);
  ExpectNear(dprobability, FiniteDifference(&probability, loss), kFiniteDifferenceTolerance);
}

}  // namespace
}  // namespace megatron::ops
