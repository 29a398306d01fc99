#include "megatron/federated/clipped_update.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;

std::vector<int32_t> Encode(const std::vector<float>& values, double clip_norm) {
  const double scale = ClipScale(SquaredNorm(values), clip_norm).value();
  std::vector<uint32_t> encoded(values.size());
  EXPECT_THAT(EncodeUpdate(values, scale, clip_norm, absl::MakeSpan(encoded)), IsOk());
  std::vector<int32_t> units;
  for (const uint32_t value : encoded) units.push_back(SignedSum(value));
  return units;
}

TEST(ClippedUpdateTest, EncodedNormIsNeverAboveTheClipNorm) {
  std::mt19937 random(1);
  for (const int size : {1, 2, 3, 10, 1000, 100000}) {
    for (const double spread : {1e-3, 1.0, 1e3, 1e30}) {
      std::normal_distribution<double> normal(0, spread);
      std::vector<float> values(size);
      for (float& value : values) value = static_cast<float>(normal(random));
      int64_t squares = 0;
      for (const int64_t unit : Encode(values, 0.7)) squares += unit * unit;
      EXPECT_LE(squares, int64_t{kUnitsOfClipNorm} * kUnitsOfClipNorm) << size << " " << spread;
      // A long update is not cut to less than what its roundings take.
      if (spread >= 1e3) {
        EXPECT_GE(std::sqrt(squares), (1 - 1e-5) * kUnitsOfClipNorm - std::sqrt(size));
      }
    }
  }
}

TEST(ClippedUpdateTest, ShortUpdateKeepsItsValuesToAUnitAndTheMargin) {
  const std::vector<float> values = {0.25f, -0.125f, 1e-9f, 0};
  const std::vector<int32_t> units = Encode(values, 1);
  // 2^21 * (1 - 2^-20), rounded towards zero.
  EXPECT_EQ(units, (std::vector<int32_t>{(1 << 21) - 2, -(1 << 20) + 1, 0, 0}));
  EXPECT_NEAR(MeanOfUnits(units[0], 1, 1), 0.25, 3e-7);
}

TEST(ClippedUpdateTest, SumOfTheMostUpdatesDoesNotWrap) {
  uint32_t sum = 0, negative = 0;
  for (int i = 0; i < kMostSummedUpdates; ++i) {
    sum += static_cast<uint32_t>(kUnitsOfClipNorm);
    negative += static_cast<uint32_t>(-kUnitsOfClipNorm);
  }
  EXPECT_EQ(SignedSum(sum), int64_t{kMostSummedUpdates} * kUnitsOfClipNorm);
  EXPECT_EQ(SignedSum(negative), -int64_t{kMostSummedUpdates} * kUnitsOfClipNorm);
  EXPECT_EQ(MeanOfUnits(SignedSum(sum), kMostSummedUpdates, 3), 3);
}

TEST(ClippedUpdateTest, NormOfSlicesIsTheNormOfTheWhole) {
  const std::vector<float> values = {3, 4, 12};
  EXPECT_EQ(SquaredNorm(values), 169);
  EXPECT_EQ(SquaredNorm({values.data(), 1}) + SquaredNorm({values.data() + 1, 2}), 169);
}

TEST(ClippedUpdateTest, TheOrderOfSlicesMakesNoOtherFactor) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(10000);
  for (float& value : values) value = normal(random);
  const absl::Span<const float> all = values;
  double slices = 0;
  for (size_t begin = 0; begin < values.size(); begin += 700)
    slices += SquaredNorm(all.subspan(begin, 700));
  EXPECT_NE(slices, SquaredNorm(all));
  EXPECT_EQ(ClipScale(slices, 0.7).value(), ClipScale(SquaredNorm(all), 0.7).value());
}

TEST(ClippedUpdateTest, RefusesWhatIsNoFiniteNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    EXPECT_THAT(ClipScale(SquaredNorm({1, bad}), 1), StatusIs(absl::StatusCode::kInvalidArgument));
    uint32_t encoded[1];
    EXPECT_THAT(EncodeUpdate({bad}, 1, 1, absl::MakeSpan(encoded)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  uint32_t encoded[1];
  EXPECT_THAT(EncodeUpdate({1.5f}, 1, 1, absl::MakeSpan(encoded)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
