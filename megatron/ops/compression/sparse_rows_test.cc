#include "megatron/ops/compression/sparse_rows.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/ops/compression/compression_harness.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class SparseRowsTest : public CompressionOpTest {};

TEST_F(SparseRowsTest, RowsAreTakenOutAndComeBack) {
  for (const int64_t columns : {1, 5, 300}) {
    for (const int64_t every : {1, 3, 1000}) {
      constexpr int64_t kRows = 1000;
      HostTensor table({kRows, columns}, DType::kFloat32);
      std::vector<int32_t> want;
      for (int64_t row = every / 2; row < kRows; row += every) {
        table.Set(row * columns + columns / 2, static_cast<double>(row + 1));
        want.push_back(static_cast<int32_t>(row));
      }
      const std::vector<float> before = Floats(table);
      const int64_t count = CountRows(stream_, table);
      ASSERT_EQ(count, static_cast<int64_t>(want.size()));
      HostTensor indices({count}, DType::kInt32), rows({count, columns}, DType::kFloat32);
      TakeRows(stream_, table, indices, rows);
      EXPECT_THAT(Ints(indices), ElementsAreArray(want));
      EXPECT_THAT(Floats(table), Each(0.0f));
      AddRows(stream_, indices, rows, table);
      EXPECT_EQ(Floats(table), before);
    }
  }
}

// A sum of columns would lose the first row, and the others are as much a gradient as any.
TEST_F(SparseRowsTest, RowsOfAnyValueCount) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const HostTensor table = HostTensor::Of({5, 2}, DType::kFloat32,
                                          {1, -1, 0, 0, std::nan(""), 0, 0, kInfinity, 0, 1e-45});
  HostTensor indices({4}, DType::kInt32), rows({4, 2}, DType::kFloat32);
  EXPECT_EQ(CountRows(stream_, table), 4);
  TakeRows(stream_, table, indices, rows);
  EXPECT_THAT(Ints(indices), ElementsAre(0, 2, 3, 4));
}

TEST_F(SparseRowsTest, AnIndexOutsideEndsTheProgram) {
  const HostTensor rows = HostTensor::Of({2, 1}, DType::kFloat32, {1, 2}),
                   table({3, 1}, DType::kFloat32);
  const auto add_at = [&](double first, double second) {
    AddRows(stream_, HostTensor::Of({2}, DType::kInt32, {first, second}), rows, table);
  };
  EXPECT_DEATH(add_at(0, 3), "row 1 is 3");
  EXPECT_DEATH(add_at(-1, 1), "row 0 is -1");
  EXPECT_DEATH(add_at(1, 1), "row 1 is 1");
}

}  // namespace
}  // namespace megatron::ops
