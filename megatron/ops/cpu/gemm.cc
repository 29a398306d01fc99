#include "megatron/ops/cpu/gemm.h"

#include <algorithm>

#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Cut {
  int64_t rows = 1, columns = 1;
};

// The grid of regions, one per thread, that minimizes the work of the busiest thread: its share of
// panels, and the packing of the operands that it reads (packing A takes about 1/100, packing B
// about 1/50 of the time of multiplying by one panel of the other side).
Cut ChooseCut(const Gemm& gemm, const GemmKernels& kernels, int64_t threads) {
  constexpr int64_t kSmall = 1 << 16;  // multiplications that take as long as waking a thread
  if (gemm.m * gemm.n * gemm.k < kSmall) return {};
  const int64_t row_panels = CeilDiv(gemm.m, kernels.panel_rows);
  const int64_t column_panels = CeilDiv(gemm.n, kernels.panel_columns);
  Cut best;
  double best_cost = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const Cut cut = {rows, threads / rows};
    const double m = static_cast<double>(CeilDiv(row_panels, cut.rows) * kernels.panel_rows);
    const double n =
        static_cast<double>(CeilDiv(column_panels, cut.columns) * kernels.panel_columns);
    const double cost = m * n + 2 * m + 4 * n;
    if (rows == 1 || cost < best_cost) {
      best = cut;
      best_cost = cost;
    }
  }
  return best;
}

const GemmKernels& Kernels(DType dtype) {
  if (dtype == DType::kBFloat16) {
    switch (ActiveBf16Products()) {
      case Bf16Products::kAvx512Bf16:
        return avx512_bf16::kGemmKernels;
      case Bf16Products::kAmx:
        return amx_bf16::kGemmKernels;
      case Bf16Products::kWidened:
        break;
    }
  }
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kGemmKernels : avx2::kGemmKernels;
}

}  // namespace

void RunGemm(ThreadPool* pool, const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  const GemmKernels& kernels = Kernels(gemm.dtype);
  const int64_t row_panels = CeilDiv(gemm.m, kernels.panel_rows);
  const int64_t column_panels = CeilDiv(gemm.n, kernels.panel_columns);
  const Cut cut = ChooseCut(gemm, kernels, pool->num_threads());
  pool->ParallelFor(cut.rows * cut.columns, [&](int64_t begin, int64_t end) {
    float* workspace = Workspace(WorkspaceKind::kPrivate, kernels.workspace_floats);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / cut.columns, column = i % cut.columns;
      kernels.run(
          gemm,
          {row_panels * row / cut.rows, row_panels * (row + 1) / cut.rows,
           column_panels * column / cut.columns, column_panels * (column + 1) / cut.columns},
          workspace);
    }
  });
}

}  // namespace megatron::ops
