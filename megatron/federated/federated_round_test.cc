// All libraries together, as docs/federated.md uses them.
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/federated/discrete_gaussian.h"
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

TEST(FederatedRoundTest, NoiseOfTheMeanHasTheDeviationOfTheMultiplier) {
  constexpr double kMultiplier = 0.5;
  const std::vector<uint32_t> sum = SecureSum(MakeIslands(), -1, /*before=*/false);
  RandomWords random(Key{});
  const uint64_t variance = NoiseVariance(kMultiplier, kUnitsOfClipNorm);
  double squares = 0;
  for (const uint32_t units : sum) {
    const int64_t noisy = SignedSum(units) + DiscreteGaussian(variance, &random);
    const double noise = MeanOfUnits(noisy, kIslands, kClipNorm) -
                         MeanOfUnits(SignedSum(units), kIslands, kClipNorm);
    squares += noise * noise;
  }
  const double expected = kMultiplier * kClipNorm / kIslands;
  // Five standard deviations of a deviation that is estimated from so many numbers.
  EXPECT_NEAR(std::sqrt(squares / kElements) / expected, 1, 5 / std::sqrt(2.0 * kElements));
}

}  // namespace
}  // namespace megatron
