#include "megatron/ops/cpu/rows.h"

#include <algorithm>
#include <cstring>

#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cpu/workspace.h"

namespace megatron::ops {

const RowKernels& ActiveRowKernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kRowKernels : avx2::kRowKernels;
}

void* RowOf(const Tensor& tensor, int64_t row) {
  if (tensor.empty()) return nullptr;
  int64_t offset = 0;
  for (int d = tensor.rank() - 2; d >= 0; --d) {
    offset += row % tensor.dim(d) * tensor.stride(d);
    row /= tensor.dim(d);
  }
  return static_cast<char*>(tensor.raw()) + offset * SizeOf(tensor.dtype());
}

void ParallelRows(ThreadPool* pool, int64_t rows, int64_t columns,
                  absl::FunctionRef<void(int64_t row)> body) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  ParallelElements(pool, rows, grain, [&](int64_t begin, int64_t count) {
    for (int64_t row = begin; row < begin + count; ++row) body(row);
  });
}

void ParallelRowsWithSums(ThreadPool* pool, int64_t rows, const ColumnSums& sums,
                          absl::FunctionRef<void(int64_t row, float* sums)> body) {
  if (rows == 0) return;
  // There are at most 64 tiles: enough for the threads of one rank, and few to add up.
  const int64_t tile_rows = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const int64_t stride = 2 * sums.columns;
  float* const partial = Workspace(WorkspaceKind::kShared, tiles * stride);
  pool->ParallelFor(tiles, [&](int64_t begin, int64_t end) {
    std::memset(partial + begin * stride, 0, (end - begin) * stride * sizeof(float));
    for (int64_t row = begin * tile_rows; row < std::min(rows, end * tile_rows); ++row) {
      body(row, partial + row / tile_rows * stride);
    }
  });
  const RowKernels& kernels = ActiveRowKernels();
  for (int i = 0; i < 2; ++i) {
    if (sums.outs[i] == nullptr) continue;
    ParallelElements(pool, sums.columns, 1024, [&](int64_t begin, int64_t count) {
      kernels.add_rows(partial + i * sums.columns + begin, tiles, stride, sums.outs[i] + begin,
                       count);
    });
  }
}

}  // namespace megatron::ops
