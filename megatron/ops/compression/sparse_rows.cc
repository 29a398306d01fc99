#include "megatron/ops/compression/sparse_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"

namespace megatron::ops {
namespace {

bool IsZero(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) {
    uint32_t bits;
    std::memcpy(&bits, row + c, sizeof bits);
    if (bits != 0) return false;
  }
  return true;
}

// Tiles of rows, each of about as many elements as a thread is woken for.
struct Tiles {
  explicit Tiles(const Tensor& table_VH)
      : table(table_VH.data<float>()),
        rows(table_VH.dim(0)),
        columns(table_VH.dim(1)),
        rows_of_tile(std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns))),
        count((rows + rows_of_tile - 1) / rows_of_tile) {}

  // Calls body(tile, row) for the rows that are not zero; those of a tile in ascending order.
  template <typename Body>
  void ForEachRow(const Stream& stream, const Body& body) const {
    stream.pool()->ParallelFor(count, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t last = std::min(rows, (tile + 1) * rows_of_tile);
        for (int64_t row = tile * rows_of_tile; row < last; ++row) {
          if (!IsZero(table + row * columns, columns)) body(tile, row);
        }
      }
    });
  }

  // Returns the number of rows of each tile that are not zero.
  std::vector<int64_t> Count(const Stream& stream) const {
    std::vector<int64_t> counts(count, 0);
    ForEachRow(stream, [&](int64_t tile, int64_t) { ++counts[tile]; });
    return counts;
  }

  float* const table;
  const int64_t rows, columns, rows_of_tile, count;
};

void CheckTable(const Stream& stream, const Tensor& table_VH) {
  CheckContiguous(stream, table_VH, DType::kFloat32, {table_VH.dim(0), table_VH.dim(1)});
  CHECK_LE(table_VH.dim(0), std::numeric_limits<int32_t>::max());
}

void CheckRows(const Stream& stream, const Tensor& indices_K, const Tensor& rows_KH,
               const Tensor& table_VH) {
  CheckTable(stream, table_VH);
  CheckContiguous(stream, indices_K, DType::kInt32, {rows_KH.dim(0)});
  CheckContiguous(stream, rows_KH, DType::kFloat32, {rows_KH.dim(0), table_VH.dim(1)});
}

}  // namespace

int64_t CountRows(const Stream& stream, const Tensor& table_VH) {
  CheckTable(stream, table_VH);
  if (stream.is_meta()) return 0;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  int64_t all = 0;
  for (const int64_t count : Tiles(table_VH).Count(stream)) all += count;
  return all;
}

void TakeRows(const Stream& stream, const Tensor& table_VH, const Tensor& indices_K,
              const Tensor& rows_KH) {
  CheckRows(stream, indices_K, rows_KH, table_VH);
  if (stream.is_meta()) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  const Tiles tiles(table_VH);
  // The place of each tile's next row.
  std::vector<int64_t> places = tiles.Count(stream);
  int64_t all = 0;
  for (int64_t& place : places) {
    const int64_t own = place;
    place = all;
    all += own;
  }
  CHECK_EQ(all, rows_KH.dim(0));
  auto* const indices = indices_K.data<int32_t>();
  auto* const rows = rows_KH.data<float>();
  const int64_t columns = tiles.columns;
  tiles.ForEachRow(stream, [&](int64_t tile, int64_t row) {
    const int64_t place = places[tile]++;
    indices[place] = static_cast<int32_t>(row);
    float* const from = tiles.table + row * columns;
    std::copy(from, from + columns, rows + place * columns);
    std::fill(from, from + columns, 0.0f);
  });
}

void AddRows(const Stream& stream, const Tensor& indices_K, const Tensor& rows_KH,
             const Tensor& table_VH) {
  CheckRows(stream, indices_K, rows_KH, table_VH);
  if (stream.is_meta()) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  const int64_t columns = table_VH.dim(1);
  const auto* const indices = indices_K.data<int32_t>();
  const auto* const rows = rows_KH.data<float>();
  float* const table = table_VH.data<float>();
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  ParallelElements(stream.pool(), rows_KH.dim(0), grain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i) {
      CHECK(0 <= indices[i] && indices[i] < table_VH.dim(0) &&
            (i == 0 || indices[i - 1] < indices[i]))
          << "row " << i << " is " << indices[i];
      float* const to = table + indices[i] * columns;
      for (int64_t c = 0; c < columns; ++c) to[c] += rows[i * columns + c];
    }
  });
}

}  // namespace megatron::ops
