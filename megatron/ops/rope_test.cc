#include "megatron/ops/rope.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kPositions = 40;

struct Tables {
  std::vector<double> inverse_frequency;
  HostTensor cos, sin;

  explicit Tables(int64_t pairs)
      : cos({kPositions, pairs}, DType::kFloat32), sin({kPositions, pairs}, DType::kFloat32) {
    for (int64_t p = 0; p < pairs; ++p) {
      inverse_frequency.push_back(std::pow(10000.0, -static_cast<double>(p) / pairs));
    }
    FillRopeTables(inverse_frequency.data(), cos, sin);
  }
};

HostTensor Positions(int64_t tokens) {
  HostTensor position({tokens}, DType::kInt32);
  for (int64_t t = 0; t < tokens; ++t) position.Set(t, t * 11 % kPositions);
  return position;
}

class RopeTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(RopeTest, RotatesEachPairByItsAngle) {
  constexpr int64_t kTokens = 9, kHeads = 3;
  for (const bool interleaved : {false, true}) {
    for (const auto& [pairs, dim] :
         {std::pair<int64_t, int64_t>{1, 2}, {4, 8}, {5, 20}, {32, 64}, {24, 50}, {64, 128}}) {
      const Tables tables(pairs);
      const HostTensor position = Positions(kTokens);
      const HostTensor x = HostTensor::Normal({kTokens, kHeads, dim}, GetParam(), 1);
      std::vector<double> want = x.Values();
      for (int64_t row = 0; row < kTokens * kHeads; ++row) {
        for (int64_t p = 0; p < pairs; ++p) {
          const double angle = position.Get(row / kHeads) * tables.inverse_frequency[p];
          double& a = want[row * dim + (interleaved ? 2 * p : p)];
          double& b = want[row * dim + (interleaved ? 2 * p + 1 : p + pairs)];
          const double rotated = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = rotated;
        }
      }
      Rope(Stream::Cpu(&pool_), tables.cos, tables.sin, position, interleaved, /*inverse=*/false,
           x);
      ExpectNear(x, want, OpTolerance(GetParam()));
    }
  }
}

TEST_P(RopeTest, InverseUndoesTheRotation) {
  const Tables tables(12);
  for (const bool interleaved : {false, true}) {
    const HostTensor x = HostTensor::Normal({20, 2, 30}, GetParam(), 1);
    const std::vector<double> want = x.Values();
    for (const bool inverse : {false, true}) {
      Rope(Stream::Cpu(&pool_), tables.cos, tables.sin, Positions(20), interleaved, inverse, x);
    }
    ExpectNear(x, want, 2 * OpTolerance(GetParam()));
  }
}

TEST_P(RopeTest, TurnsHeadsInsideAPackedProjectionAndNothingElse) {
  const Tables tables(8);
  const HostTensor packed = HostTensor::Normal({7, 2, 5, 16}, GetParam(), 1);
  const HostTensor old = HostTensor::Normal({7, 2, 5, 16}, GetParam(), 1);
  // Heads 1 to 3 of each group, as a separate tensor and in place.
  const HostTensor heads({7, 2, 3, 16}, GetParam());
  const auto copy = [&](int64_t row, int64_t d) { return ((row / 3) * 5 + 1 + row % 3) * 16 + d; };
  HostTensor alone({7, 2, 3, 16}, GetParam());
  for (int64_t i = 0; i < alone.numel(); ++i) alone.Set(i, old.Get(copy(i / 16, i % 16)));
  const Stream stream = Stream::Cpu(&pool_);
  Rope(stream, tables.cos, tables.sin, Positions(7), false, false, alone);
  Rope(stream, tables.cos, tables.sin, Positions(7), false, false, packed.tensor().Slice(2, 1, 4));
  HostTensor want = HostTensor::Normal({7, 2, 5, 16}, GetParam(), 1);
  for (int64_t i = 0; i < alone.numel(); ++i) want.Set(copy(i / 16, i % 16), alone.Get(i));
  EXPECT_EQ(packed.Bytes(), want.Bytes());
  // One head, without the dim of heads in a group.
  const HostTensor key = HostTensor::Normal({7, 2, 5, 16}, GetParam(), 1);
  Rope(stream, tables.cos, tables.sin, Positions(7), false, false, key.tensor().Select(2, 1));
  EXPECT_EQ(key.Get(16 + 3), packed.Get(16 + 3));
  EXPECT_EQ(key.Get(3), old.Get(3));
}

INSTANTIATE_TEST_SUITE_P(DTypes, RopeTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(RopeTablesTest, TablesAreRoundedFromDoublePrecision) {
  const Tables tables(3);
  for (int64_t s = 0; s < kPositions; ++s) {
    for (int64_t p = 0; p < 3; ++p) {
      const double angle = static_cast<double>(s) * tables.inverse_frequency[p];
      EXPECT_EQ(tables.cos.Get(s * 3 + p), static_cast<float>(std::cos(angle)));
      EXPECT_EQ(tables.sin.Get(s * 3 + p), static_cast<float>(std::sin(angle)));
    }
  }
}

TEST(RopeBitsTest, BitsDoNotDependOnTheNumberOfThreads) {
  const Tables tables(10);
  ThreadPool one(1), many(5);
  const HostTensor want = HostTensor::Normal({19, 2, 24}, DType::kFloat32, 1);
  const HostTensor got = HostTensor::Normal({19, 2, 24}, DType::kFloat32, 1);
  Rope(Stream::Cpu(&one), tables.cos, tables.sin, Positions(19), true, false, want);
  Rope(Stream::Cpu(&many), tables.cos, tables.sin, Positions(19), true, false, got);
  EXPECT_EQ(got.Bytes(), want.Bytes());
}

TEST(RopeMemoryTest, SteadyStateAllocatesNothing) {
  const Tables tables(10);
  ThreadPool pool(2);
  const HostTensor x({19, 2, 24}, DType::kFloat32), position = Positions(19);
  Rope(Stream::Cpu(&pool), tables.cos, tables.sin, position, true, false, x);
  const int64_t before = AllocationCount();
  Rope(Stream::Cpu(&pool), tables.cos, tables.sin, position, true, false, x);
  EXPECT_EQ(AllocationCount(), before);
}

TEST(RopeDeathTest, PositionsBeyondTheTableAreRefused) {
  const Tables tables(2);
  ThreadPool pool(1);
  const HostTensor x({1, 1, 4}, DType::kFloat32),
      position = HostTensor::Of({1}, DType::kInt32, {kPositions});
  EXPECT_DEATH(Rope(Stream::Cpu(&pool), tables.cos, tables.sin, position, false, false, x),
               "position 40 of a table of 40");
}

TEST(RopeMetaTest, ShapesAreCheckedAndNothingRuns) {
  const Device meta = {DeviceType::kMeta, 0};
  const Tensor table(nullptr, DType::kFloat32, {8, 4}, meta),
      position(nullptr, DType::kInt32, {3}, meta);
  const Tensor x(nullptr, DType::kBFloat16, {3, 2, 8}, meta),
      narrow(nullptr, DType::kBFloat16, {3, 2, 6}, meta);
  FillRopeTables(nullptr, table, table);
  Rope(Stream::Meta(), table, table, position, false, false, x);
  EXPECT_DEATH(Rope(Stream::Meta(), table, table, position, false, false, narrow), "");
}

}  // namespace
}  // namespace megatron::ops
