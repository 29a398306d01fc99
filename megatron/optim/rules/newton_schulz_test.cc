#include "megatron/optim/rules/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int64_t kArenaBytes = 1 << 22;

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> at;
};

// Random elements of fp32, divided by their norm.
Matrix Random(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix = {rows, columns, {}};
  double squares = 0;
  for (int64_t i = 0; i < rows * columns; ++i) {
    matrix.at.push_back(normal(random));
    squares += matrix.at.back() * matrix.at.back();
  }
  for (double& x : matrix.at) x = static_cast<float>(x / std::sqrt(squares));
  return matrix;
}

Matrix Product(const Matrix& a, const Matrix& b, bool transposes_b) {
  const int64_t inner = a.columns, columns = transposes_b ? b.rows : b.columns;
  Matrix c = {a.rows, columns, std::vector<double>(a.rows * columns, 0)};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t k = 0; k < inner; ++k)
        c.at[i * columns + j] +=
            a.at[i * inner + k] * b.at[transposes_b ? j * inner + k : k * columns + j];
    }
  }
  return c;
}

// The definition, in double precision: X = a X + b G X + c G² X with G = X Xᵀ.
Matrix Naive(Matrix x, int steps) {
  const double coefficients[5][3] = {{4.0848, -6.8946, 2.9270},
                                     {3.9505, -6.3029, 2.6377},
                                     {3.7418, -5.5913, 2.3037},
                                     {2.8769, -3.1427, 1.2046},
                                     {2.8366, -3.0525, 1.2012}};
  for (int step = 0; step < steps; ++step) {
    const double* const k = coefficients[step % 5];
    const Matrix gram = Product(x, x, /*transposes_b=*/true);
    const Matrix first = Product(gram, x, false), second = Product(gram, first, false);
    for (size_t i = 0; i < x.at.size(); ++i)
      x.at[i] = k[0] * x.at[i] + k[1] * first.at[i] + k[2] * second.at[i];
  }
  return x;
}

std::vector<float> FloatsOf(const Matrix& matrix) {
  return std::vector<float>(matrix.at.begin(), matrix.at.end());
}

// Runs the iteration on the rows or columns that a rank has.
std::vector<float> Iterate(const Matrix& matrix, DType dtype, NewtonSchulzOptions options) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  Arena scratch({}, kArenaBytes, "test", nullptr);
  std::vector<float> values = FloatsOf(matrix);
  const Tensor floats(values.data(), DType::kFloat32, {matrix.rows, matrix.columns});
  const Tensor x = scratch.Allocate(dtype, floats.shape(), "x");
  ops::Copy(stream, floats, x);
  NewtonSchulz(stream, options, x, &scratch);
  ops::Copy(stream, x, floats);
  return values;
}

double RelativeError(const std::vector<float>& got, const Matrix& want) {
  double error = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want.at[i]) * (got[i] - want.at[i]);
    squares += want.at[i] * want.at[i];
  }
  return std::sqrt(error / squares);
}

TEST(NewtonSchulzTest, IsTheDefinitionOnBothSides) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 24}, {24, 8}, {16, 16}, {1, 7}, {7, 1}}) {
    for (const int steps : {1, 4, 5, 6, 7}) {
      for (const GramSide side : {GramSide::kRows, GramSide::kColumns}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", " << steps << " steps");
        const Matrix x = Random(rows, columns, 3);
        const Matrix want = Naive(x, steps);
        NewtonSchulzOptions options;
        options.steps = steps;
        options.side = side;
        EXPECT_LT(RelativeError(Iterate(x, DType::kFloat32, options), want), 2e-5);
        // A single step takes differences of rounded numbers.
        if (steps == 5) {
          EXPECT_LT(RelativeError(Iterate(x, DType::kBFloat16, options), want), 0.15);
        }
      }
    }
  }
}

TEST(NewtonSchulzTest, FiveStepsMakeRowsNearlyOrthonormal) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const uint32_t seed : {1, 2, 3}) {
      const Matrix x = Random(24, 96, seed);
      const std::vector<float> got = Iterate(x, dtype, {});
      const Matrix o = {24, 96, std::vector<double>(got.begin(), got.end())};
      const Matrix gram = Product(o, o, /*transposes_b=*/true);
      for (int64_t i = 0; i < 24; ++i) {
        double others = 0;
        for (int64_t j = 0; j < 24; ++j) {
          if (j != i) others += gram.at[i * 24 + j] * gram.at[i * 24 + j];
        }
        EXPECT_NEAR(gram.at[i * 24 + i], 1, 0.3) << i;
        EXPECT_LT(std::sqrt(others), 0.3) << i;
      }
    }
  }
}

TEST(NewtonSchulzTest, AMatrixOfZerosStaysOne) {
  const Matrix zeros = {4, 6, std::vector<double>(24, 0)};
  for (const float x : Iterate(zeros, DType::kFloat32, {})) EXPECT_EQ(x, 0);
}

// Ranks with rows, or columns, of a matrix get those of its result. Each block may be on several.
TEST(NewtonSchulzTest, BlocksOnRanksAreThoseOfTheWholeMatrix) {
  const int64_t rows = 12, columns = 16;
  const Matrix whole = Random(rows, columns, 5);
  const Matrix want = Naive(whole, 5);
  for (const GramSide side : {GramSide::kRows, GramSide::kColumns}) {
    for (const int replicas : {1, 2}) {
      const int blocks = 4 / replicas;
      EXPECT_THAT(
          RunRanks(
              4,
              [&](int rank, const ProcessGroup& world) -> absl::Status {
                const bool cuts_rows = side == GramSide::kColumns;
                Matrix block = {
                    cuts_rows ? rows / blocks : rows, cuts_rows ? columns : columns / blocks, {}};
                Matrix result = block;
                const int64_t at = rank / replicas;
                for (int64_t i = 0; i < block.rows; ++i) {
                  for (int64_t j = 0; j < block.columns; ++j) {
                    const int64_t row = i + (cuts_rows ? at * block.rows : 0);
                    const int64_t column = j + (cuts_rows ? 0 : at * block.columns);
                    block.at.push_back(whole.at[row * columns + column]);
                    result.at.push_back(want.at[row * columns + column]);
                  }
                }
                NewtonSchulzOptions options;
                options.side = side;
                options.group = world;
                options.replicas = replicas;
                EXPECT_LT(RelativeError(Iterate(block, DType::kFloat32, options), result), 2e-5);
                return absl::OkStatus();
              }),
          IsOk());
    }
  }
}

}  // namespace
}  // namespace megatron
