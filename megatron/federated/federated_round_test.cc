// All libraries together, as docs/federated.md uses them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/federated/noisy_mean.h"
#include "megatron/federated/secure_sum.h"

namespace megatron {
namespace {

using absl_testing::IsOk;

constexpr int kIslands = 3;
constexpr int kElements = 5000;
constexpr int kFirstRank = 1999;  // elements of the first of an island's two ranks
constexpr double kClipNorm = 0.5;

struct Island {
  std::vector<float> update;
  double scale = 0;
  std::vector<uint32_t> encoded;
};

// Islands whose updates have norms below and above the clip norm.
std::vector<Island> MakeIslands() {
  std::vector<Island> islands(kIslands);
  for (int i = 0; i < kIslands; ++i) {
    std::mt19937 random(i + 1);
    std::normal_distribution<float> normal(0, i == 0 ? 1e-3f : 0.1f);
    Island& island = islands[i];
    island.update.resize(kElements);
    for (float& value : island.update) value = normal(random);
    const absl::Span<const float> update = island.update;
    const double squared =
        SquaredNorm(update.subspan(0, kFirstRank)) + SquaredNorm(update.subspan(kFirstRank));
    island.scale = ClipScale(squared, kClipNorm).value();
    island.encoded.resize(kElements);
    EXPECT_THAT(EncodeUpdate(update, island.scale, kClipNorm, absl::MakeSpan(island.encoded)),
                IsOk());
  }
  return islands;
}

// Returns the unmasked sum of a round in which `lost` sends its masked update and tells nothing
// more; -1: none is lost. With `before`, it is lost before it sends.
std::vector<uint32_t> SecureSum(const std::vector<Island>& islands, int lost, bool before) {
  const SecureSumOptions options = {"test, round 0", 2};
  std::vector<SecureSumMember> members;
  SecureSumServer server(options);
  for (int i = 0; i < kIslands; ++i) {
    members.emplace_back(i, options);
    EXPECT_THAT(server.Advertise(members[i].advertisement()), IsOk());
  }
  const std::vector<Advertisement> all = server.CloseAdvertising().value();
  for (int i = 0; i < kIslands; ++i) {
    EXPECT_THAT(server.Share(i, members[i].ShareKeys(all).value()), IsOk());
  }
  std::map<int, std::vector<SealedShares>> shares = server.CloseSharing().value();
  std::vector<uint32_t> sum(kElements, 0);
  for (int i = 0; i < kIslands; ++i) {
    const std::vector<Mask> masks = members[i].Masks(shares[i]).value();
    if (before && i == lost) continue;
    std::vector<uint32_t> masked = islands[i].encoded;
    AddMasks(masks, 0, absl::MakeSpan(masked).subspan(0, kFirstRank));
    AddMasks(masks, kFirstRank, absl::MakeSpan(masked).subspan(kFirstRank));
    for (int j = 0; j < kElements; ++j) sum[j] += masked[j];
    EXPECT_THAT(server.Masked(i), IsOk());
  }
  const std::vector<int> summed = server.CloseMasking().value();
  for (const int i : summed) {
    if (i == lost) continue;
    EXPECT_THAT(server.Reveal(members[i].Reveal(summed).value()), IsOk());
  }
  AddMasks(server.CloseRevealing().value(), 0, absl::MakeSpan(sum));
  return sum;
}

TEST(FederatedRoundTest, MeanIsThatOfTheClippedUpdatesToAUnit) {
  const std::vector<Island> islands = MakeIslands();
  for (const int lost : {-1, 0, 2}) {  // lost between masking and unmasking: still in the sum
    const std::vector<uint32_t> sum = SecureSum(islands, lost, /*before=*/false);
    for (int j = 0; j < kElements; ++j) {
      double plain = 0;
      for (const Island& island : islands) plain += island.update[j] * island.scale;
      EXPECT_NEAR(MeanOfUnits(SignedSum(sum[j]), kIslands, kClipNorm), plain / kIslands,
                  kClipNorm / kUnitsOfClipNorm);
    }
  }
}

TEST(FederatedRoundTest, SumWithoutAnIslandThatIsLostBeforeItSendsIsThatOfTheOthers) {
  const std::vector<Island> islands = MakeIslands();
  const std::vector<uint32_t> sum = SecureSum(islands, 1, /*before=*/true);
  for (int j = 0; j < kElements; ++j) {
    EXPECT_EQ(sum[j], islands[0].encoded[j] + islands[2].encoded[j]);
  }
}

TEST(FederatedRoundTest, MeanOfAMaskedSumIsThatOfTheIntegersWhateverTheThreads) {
  const std::vector<uint32_t> sum = SecureSum(MakeIslands(), -1, /*before=*/false);
  const std::vector<Mask> masks = {{RandomKey(), true}, {RandomKey(), false}};
  // The sum with what removing these masks takes out.
  std::vector<uint32_t> masked = sum;
  AddMasks({{masks[0].seed, false}, {masks[1].seed, true}}, 0, absl::MakeSpan(masked));
  for (const int threads : {1, 2, 7}) {
    std::vector<uint32_t> left = masked;
    std::vector<float> mean(kElements);
    UnmaskedMean(masks, kIslands, kClipNorm, 0, threads, absl::MakeSpan(left),
                 absl::MakeSpan(mean));
    for (int j = 0; j < kElements; ++j) {
      ASSERT_EQ(mean[j], static_cast<float>(MeanOfUnits(SignedSum(sum[j]), kIslands, kClipNorm)));
    }
  }
  // Without the masks' removal it is another.
  std::vector<float> mean(kElements);
  UnmaskedMean({}, kIslands, kClipNorm, 0, 1, absl::MakeSpan(masked), absl::MakeSpan(mean));
  int same = 0;
  for (int j = 0; j < kElements; ++j) {
    same += mean[j] == static_cast<float>(MeanOfUnits(SignedSum(sum[j]), kIslands, kClipNorm));
  }
  EXPECT_LT(same, 3);
}

TEST(FederatedRoundTest, NoiseOfTheMeanHasTheDeviationOfTheMultiplierInEachThread) {
  constexpr double kMultiplier = 0.5;
  constexpr int kMany = 50000;
  std::vector<double> first;
  for (const int threads : {1, 3}) {
    std::vector<uint32_t> sum(kMany, 0);
    std::vector<float> mean(kMany);
    UnmaskedMean({}, kIslands, kClipNorm, kMultiplier, threads, absl::MakeSpan(sum),
                 absl::MakeSpan(mean));
    const double expected = kMultiplier * kClipNorm / kIslands;
    for (int part = 0; part < 3; ++part) {
      double squares = 0;
      const int begin = kMany * part / 3, end = kMany * (part + 1) / 3;
      for (int j = begin; j < end; ++j) squares += static_cast<double>(mean[j]) * mean[j];
      // Six standard deviations of a deviation that is estimated from so many numbers.
      EXPECT_NEAR(std::sqrt(squares / (end - begin)) / expected, 1,
                  6 / std::sqrt(2.0 * (end - begin)));
      // Each sum of noise is another: each thread and each call has a generator of its own.
      first.push_back(mean[begin]);
    }
  }
  std::sort(first.begin(), first.end());
  EXPECT_EQ(std::unique(first.begin(), first.end()), first.end());
}

}  // namespace
}  // namespace megatron
