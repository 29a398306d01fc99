// Tests of the instructions that attention on Hopper is made of, one at a time: on a device of
// compute capability 9.0, and in the emulation. A failure names the first wrong element.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/cuda/hopper/tile_probes.h"
#include "megatron/ops/cuda/own_attention.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops::cuda::hopper {
namespace {

constexpr int64_t kTokens = 150, kHeads = 2;

// Values that 16-bit floats hold exactly, as do sums of products of them in fp32.
int ValueAt(int64_t token, int64_t head, int64_t column) {
  return static_cast<int>((token * 5 + column * 3 + head * 7) % 17 - 8);
}

using Wanted = std::function<double(int row, int column)>;

// Says where the rows differ from what is wanted, and in how many rows and columns; empty if
// nowhere.
std::string Difference(const std::vector<float>& got, int columns, const Wanted& want) {
  std::ostringstream first;
  std::set<int> wrong_rows, wrong_columns;
  int count = 0;
  const int rows = static_cast<int>(got.size()) / columns;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const double is = got[static_cast<size_t>(row * columns + column)];
      if (is == want(row, column)) continue;
      if (count++ == 0) {
        first << "row " << row << ", column " << column << " is " << is << ", not "
              << want(row, column);
      }
      wrong_rows.insert(row);
      wrong_columns.insert(column);
    }
  }
  if (count == 0) return "";
  first << "; wrong are " << count << " elements, in " << wrong_rows.size() << " of " << rows
        << " rows and " << wrong_columns.size() << " of " << columns << " columns";
  return first.str();
}

class TilesDeviceTest : public ::testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) {
      if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr)
        FAIL() << "MEGATRON_REQUIRE_GPU is set and there is no GPU";
      GTEST_SKIP() << "no GPU";
    }
    stream_ = std::make_unique<CudaStream>(0);
    if (!HopperAttentionIsAvailable())
      GTEST_SKIP() << "no device of compute capability 9.0, or no code for it";
    std::vector<double> values;
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t column = 0; column < head_dim(); ++column)
          values.push_back(ValueAt(token, head, column));
      }
    }
    const Shape shape = {kTokens, kHeads, head_dim()};
    const HostTensor host = HostTensor::Of(shape, dtype(), values);
    x_ = Buffer(kDevice, host.tensor().bytes(), "tiles", nullptr);
    CopyOnCuda(stream_.get(), host, x_.At(0, dtype(), shape));
  }

  static DType dtype() { return std::get<0>(GetParam()); }
  static int head_dim() { return std::get<1>(GetParam()); }

  using Probe = void (*)(const Stream&, const ProbedTile&, float*);

  // Returns what the probe makes of the second head's rows from `token` on.
  std::vector<float> Run(Probe probe, int64_t token, int rows, int columns) {
    // The results are not zeros before, so that it shows what was not written.
    HostTensor out = HostTensor::Of(
        {rows, columns}, DType::kFloat32,
        std::vector<double>(static_cast<size_t>(rows) * static_cast<size_t>(columns), -77));
    const Buffer memory(kDevice, out.tensor().bytes(), "results", nullptr);
    const Tensor on_device = memory.At(0, DType::kFloat32, {rows, columns});
    CopyOnCuda(stream_.get(), out, on_device);
    probe(Stream::Cuda(0, stream_.get()),
          {dtype(), x_.data(), kTokens, kHeads, head_dim(), 1, token},
          static_cast<float*>(on_device.raw()));
    CopyOnCuda(stream_.get(), on_device, out);
    const std::vector<double> values = out.Values();
    return {values.begin(), values.end()};
  }
  std::vector<float> Copied(int64_t token) { return Run(ProbeCopy, token, kProbeRows, head_dim()); }
  std::vector<float> Scores(int64_t token) {
    return Run(ProbeScores, token, kProbeResults, kProbeRows);
  }
  std::vector<float> WeightedSums(int64_t token) {
    return Run(ProbeWeightedSums, token, kProbeResults, head_dim());
  }

  // Returns what the tile from `token` on holds.
  static Wanted TileFrom(int64_t token) {
    return [token](int row, int column) {
      const int64_t at = token + row;
      return at < 0 || at >= kTokens ? 0.0 : ValueAt(at, 1, column);
    };
  }
  static Wanted ScoresOf(const Wanted& tile) {
    return [tile](int row, int column) {
      double sum = 0;
      for (int d = 0; d < head_dim(); ++d)
        sum += tile(kProbeRows - kProbeResults + row, d) * tile(column, d);
      return sum;
    };
  }
  static Wanted WeightedSumsOf(const Wanted& tile) {
    return [tile](int row, int column) {
      double sum = kProbeStart;
      for (int from = 0; from < kProbeRows; ++from)
        sum += ProbeWeight(row, from) * tile(from, column);
      return sum;
    };
  }

 private:
  static constexpr Device kDevice = {DeviceType::kCuda, 0};
  std::unique_ptr<CudaStream> stream_;
  Buffer x_;
};

TEST_P(TilesDeviceTest, CopiedRowsLieSwizzled) {
  EXPECT_EQ(Difference(Copied(10), head_dim(), TileFrom(10)), "");
}

TEST_P(TilesDeviceTest, RowsOutOfBoundsAreZeros) {
  EXPECT_EQ(Difference(Copied(-3), head_dim(), TileFrom(-3)), "");
  EXPECT_EQ(Difference(Copied(60), head_dim(), TileFrom(60)), "");
}

TEST_P(TilesDeviceTest, RowsTimesRowsAreTheirScores) {
  EXPECT_EQ(Difference(Scores(10), kProbeRows, ScoresOf(TileFrom(10))), "");
}

TEST_P(TilesDeviceTest, WeightedRowsAreAddedUp) {
  EXPECT_EQ(Difference(WeightedSums(10), head_dim(), WeightedSumsOf(TileFrom(10))), "");
}

// The operands are such that every mistake changes a result: an operand read as if it were not
// swizzled, a transposed one as if it were not, rows out of bounds that are not zeros.
TEST_P(TilesDeviceTest, EachMistakeWouldShow) {
  const Wanted tile = TileFrom(10);
  const Wanted not_swizzled = [&](int row, int column) { return tile(row, column ^ row % 8 * 8); };
  EXPECT_EQ(Difference(Copied(10), head_dim(), not_swizzled).rfind("row 1, column 0 is ", 0), 0u);
  EXPECT_NE(Difference(Scores(10), kProbeRows, ScoresOf(not_swizzled)), "");
  EXPECT_NE(Difference(WeightedSums(10), head_dim(), WeightedSumsOf(not_swizzled)), "");

  const Wanted transposed = [&](int row, int column) { return tile(column, row % head_dim()); };
  EXPECT_NE(Difference(Scores(10), kProbeRows, ScoresOf(transposed)), "");
  EXPECT_NE(Difference(WeightedSums(10), head_dim(), WeightedSumsOf(transposed)), "");

  const Wanted the_last_again = [&](int row, int column) {
    return 60.0 + row < kTokens ? TileFrom(60)(row, column) : ValueAt(kTokens - 1, 1, column);
  };
  const std::string said = Difference(Copied(60), head_dim(), the_last_again);
  EXPECT_EQ(said.rfind("row 90, column ", 0), 0u) << said;
  EXPECT_NE(said.find(" in 38 of 128 rows"), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(DTypesAndHeads, TilesDeviceTest,
                         ::testing::Combine(::testing::Values(DType::kBFloat16, DType::kFloat16),
                                            ::testing::Values(64, 128)),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace megatron::ops::cuda::hopper
