#include "megatron/ops/cpu/moe_row_kernels.h"

#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

void SumRows(const PlacedRows& rows, const float* weight, void* out) {
  WithType(rows.dtype, [&](auto* type) {
    const auto* const x = As(type, rows.x);
    auto* const y = As(type, out);
    ForEachVec(rows.columns, [&](auto access, int64_t column) {
      Vec sum = Zero();
      for (int64_t i = 0; i < rows.count; ++i) {
        if (rows.place[i] < 0) continue;
        const Vec row = access.load(x + rows.place[i] * rows.columns + column);
        const float factor = weight == nullptr ? 1.0f : weight[i / rows.per_weight];
        sum = Fma(Set(factor), row, sum);
      }
      access.store(y + column, sum);
    });
  });
}

float ScaleRowAndDot(DType dtype, int64_t columns, const void* a, const void* b, float factor,
                     void* out) {
  float dot = 0;
  WithType(dtype, [&](auto* type) {
    const auto* const left = As(type, a);
    const auto* const right = As(type, b);
    auto* const scaled = As(type, out);
    Vec sum = Zero();
    ForEachVec(columns, [&](auto access, int64_t column) {
      const Vec x = access.load(left + column);
      sum = Fma(x, access.load(right + column), sum);
      access.store(scaled + column, x * Set(factor));
    });
    dot = Sum(sum);
  });
  return dot;
}

}  // namespace

const MoeRowKernels kMoeRowKernels = {SumRows, ScaleRowAndDot};

}  // namespace megatron::ops::MEGATRON_ISA
