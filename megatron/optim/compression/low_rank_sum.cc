#include "megatron/optim/compression/low_rank_sum.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

// Numbers drawn for Q, apart from those drawn for other purposes.
constexpr uint32_t kQueryPurpose = 0x51;

Tensor Part(const Tensor& flat, int64_t begin, int64_t size) {
  return flat.Slice(0, begin, begin + size);
}

// Makes the rows of x orthonormal, as Gram and Schmidt do. A row that depends on those in front of
// it is left with rounding errors, and normalizing these is what the second pass is for: after it
// the rows are orthogonal. A row of zeros stays.
void OrthonormalizeRows(const Tensor& x_RC) {
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  float* const x = x_RC.data<float>();
  const auto dot = [columns](const float* a, const float* b) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = x + r * columns;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t other = 0; other < r; ++other) {
        const float* const before = x + other * columns;
        const auto along = static_cast<float>(dot(row, before));
        for (int64_t i = 0; i < columns; ++i) row[i] -= along * before[i];
      }
      const double norm = std::sqrt(dot(row, row));
      if (norm == 0) break;
      for (int64_t i = 0; i < columns; ++i) row[i] = static_cast<float>(row[i] / norm);
    }
  }
}

// Draws the rows of zeros of a Qᵀ, which lies in `queries`, anew. They come from a matrix that was
// zero, or of lower rank than Q, and the products with them would be zero in all later steps. All
// ranks have the same Q and draw the same.
void DrawRowsOfZeros(const Tensor& queries, const Tensor& query_RC) {
  const PhiloxKey key = DeriveKey(/*seed=*/0, kQueryPurpose, 1, 0);
  const int64_t rows = query_RC.dim(0), columns = query_RC.dim(1);
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = query_RC.data<float>() + r * columns;
    if (std::any_of(row, row + columns, [](float x) { return x != 0; })) continue;
    FillNormal(key, row - queries.data<float>(), columns, row);
  }
}

}  // namespace

LowRankSum::LowRankSum(int64_t elements, const std::vector<MatrixPlace>& matrices, int rank,
                       double min_compression_rate) {
  int64_t begin = 0;
  const auto add_dense = [&](int64_t end) {
    CHECK_GE(end, begin);
    if (end > begin) dense_.push_back({begin, end - begin});
    dense_elements_ += end - begin;
  };
  for (const MatrixPlace& place : matrices) {
    const int64_t own = std::min({int64_t{rank}, place.rows, place.columns});
    const double factors = static_cast<double>((place.rows + place.columns) * own);
    if (factors * min_compression_rate >= static_cast<double>(place.rows * place.columns)) continue;
    add_dense(place.begin);
    begin = place.begin + place.rows * place.columns;
    matrices_.push_back({place, own, factor_elements_, query_elements_});
    factor_elements_ += own * place.rows;
    query_elements_ += own * place.columns;
  }
  add_dense(elements);
}

void LowRankSum::Start(uint64_t seed, const Tensor& queries) const {
  if (queries.empty() || queries.device().type == DeviceType::kMeta) return;
  FillNormal(DeriveKey(seed, kQueryPurpose, 0, 0), 0, queries.numel(), queries.data<float>());
}

template <typename Body>
void LowRankSum::ForEachMatrix(const Tensor& flat, const Tensor& factors, const Tensor& queries,
                               const Body& body) const {
  for (const Matrix& matrix : matrices_) {
    const auto& [begin, rows, columns] = matrix.place;
    body(Part(flat, begin, rows * columns).View({rows, columns}),
         Part(factors, matrix.factor_begin, matrix.rank * rows).View({matrix.rank, rows}),
         Part(queries, matrix.query_begin, matrix.rank * columns).View({matrix.rank, columns}));
  }
}

void LowRankSum::Sum(const Tensor& gradients, const Tensor& error, const Tensor& queries,
                     const Tensor& scratch, const ProcessGroup& group, const Stream& stream) const {
  const Tensor factors = Part(scratch, 0, factor_elements_);
  const Tensor dense = Part(scratch, factor_elements_, dense_elements_);
  const Tensor shares = Part(scratch, factor_elements_ + dense_elements_, query_elements_);
  if (!error.empty()) {
    ops::Add(stream, error, gradients);
    ops::Copy(stream, gradients, error);
  }
  ForEachMatrix(gradients, factors, queries,
                [&](const Tensor& matrix, const Tensor& factor, const Tensor& query) {
                  if (!stream.is_meta()) DrawRowsOfZeros(queries, query);
                  ops::LinearForward(stream, query, matrix, Tensor(), factor);
                });
  const auto for_each_run = [&](const auto& body) {
    int64_t begin = 0;
    for (const Run& run : dense_) {
      body(Part(gradients, run.begin, run.size), Part(dense, begin, run.size));
      begin += run.size;
    }
  };
  for_each_run([&](const Tensor& own, const Tensor& sent) { ops::Copy(stream, own, sent); });
  group.AllReduce(Part(scratch, 0, factor_elements_ + dense_elements_), ReduceOp::kSum, stream);
  ForEachMatrix(gradients, factors, queries,
                [&](const Tensor& matrix, const Tensor& factor, const Tensor& query) {
                  if (!stream.is_meta()) OrthonormalizeRows(factor);
                  ops::LinearBackwardInput(stream, factor, matrix, query);
                });
  if (!matrices_.empty()) group.AllReduce(queries, ReduceOp::kSum, stream);
  for_each_run([&](const Tensor& own, const Tensor& sum) { ops::Copy(stream, sum, own); });
  ForEachMatrix(gradients, factors, queries,
                [&](const Tensor& matrix, const Tensor& factor, const Tensor& query) {
                  ops::Zero(stream, matrix);
                  ops::LinearBackwardWeight(stream, factor, query, matrix, Tensor());
                });
  if (error.empty()) return;
  if (!matrices_.empty()) {
    ops::Copy(stream, queries, shares);
    ops::Scale(stream, -1.0f / static_cast<float>(group.size()), shares);
  }
  ForEachMatrix(error, factors, shares,
                [&](const Tensor& left, const Tensor& factor, const Tensor& share) {
                  ops::LinearBackwardWeight(stream, factor, share, left, Tensor());
                });
  for (const Run& run : dense_) ops::Zero(stream, Part(error, run.begin, run.size));
}

}  // namespace megatron
