#include "megatron/ops/float8/quantize.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/element_conversion.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

constexpr int64_t kRowsAtOnce = kFloat8Alignment;

void CheckForm(const Stream& stream, const Tensor& codes, const Shape& shape) {
  if (!codes.empty()) CheckContiguous(stream, codes, DType::kUInt8, shape);
}

// Writes rows [begin, end), and the rows behind the last one, which only the transposed form has.
template <typename T>
void QuantizeRows(const T* x, const Float8Tensor& out, int64_t rows, int64_t columns, float scale,
                  int64_t begin, int64_t end) {
  uint8_t* const codes = static_cast<uint8_t*>(out.codes_RC.raw());
  uint8_t* const transposed = static_cast<uint8_t*>(out.codes_CS.raw());
  const int64_t stride = Float8Padded(rows);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t code =
          r < rows ? FloatToFloat8(out.format, ToFloat(x[r * columns + c]) * scale) : uint8_t{0};
      if (codes != nullptr && r < rows) codes[r * columns + c] = code;
      if (transposed != nullptr) transposed[c * stride + r] = code;
    }
  }
}

// Returns the largest |x|, ignoring NaN; 0 if there are no elements.
float LargestOf(const Stream& stream, const Tensor& x_RC) {
  const int64_t pieces = (x_RC.numel() + kElementGrain - 1) / kElementGrain;
  float* const largest = Workspace(WorkspaceKind::kShared, pieces);
  WithElements(x_RC, [&](const auto* x) {
    ParallelElements(stream.pool(), pieces, 1, [&](int64_t begin, int64_t count) {
      for (int64_t piece = begin; piece < begin + count; ++piece) {
        const int64_t last = std::min(x_RC.numel(), (piece + 1) * kElementGrain);
        float max = 0;
        for (int64_t i = piece * kElementGrain; i < last; ++i) {
          const float magnitude = std::fabs(ToFloat(x[i]));
          max = magnitude > max ? magnitude : max;
        }
        largest[piece] = max;
      }
    });
  });
  return pieces == 0 ? 0 : *std::max_element(largest, largest + pieces);
}

void CheckQuantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                   const Float8Tensor& out) {
  CheckFloating(x_RC);
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  CHECK_EQ(columns % kFloat8Alignment, 0) << x_RC;
  CheckContiguous(stream, x_RC, x_RC.dtype(), {rows, columns});
  CheckContiguous(stream, amax_1, DType::kFloat32, {1});
  CheckForm(stream, out.codes_RC, {rows, columns});
  CheckForm(stream, out.codes_CS, {columns, Float8Padded(rows)});
  CheckContiguous(stream, out.inverse_scale_1, DType::kFloat32, {1});
}

void QuantizeOnCpu(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                   const Float8Tensor& out) {
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  const float scale = Float8Scale(out.format, *amax_1.data<float>());
  *out.inverse_scale_1.data<float>() = 1 / scale;
  WithElements(x_RC, [&](const auto* x) {
    ParallelElements(stream.pool(), Float8Padded(rows), kRowsAtOnce,
                     [&](int64_t begin, int64_t count) {
                       for (int64_t r = begin; r < begin + count; r += kRowsAtOnce)
                         QuantizeRows(x, out, rows, columns, scale, r, r + kRowsAtOnce);
                     });
  });
}

}  // namespace

void AbsMax(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1) {
  CheckFloating(x_RC);
  CheckContiguous(stream, x_RC, x_RC.dtype(), x_RC.shape());
  CheckContiguous(stream, amax_1, DType::kFloat32, {1});
  if (RunsOnCuda(stream)) return OnCuda<AbsMax>(stream, x_RC, amax_1);
  if (RunsOnCpu(stream)) *amax_1.data<float>() = LargestOf(stream, x_RC);
}

void Quantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
              const Float8Tensor& out) {
  CheckQuantize(stream, x_RC, amax_1, out);
  if (RunsOnCuda(stream)) return OnCuda<Quantize>(stream, x_RC, amax_1, out);
  if (RunsOnCpu(stream)) QuantizeOnCpu(stream, x_RC, amax_1, out);
}

void QuantizeAndMeasure(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                        const Float8Tensor& out, const Tensor& largest_1) {
  CheckQuantize(stream, x_RC, amax_1, out);
  CheckContiguous(stream, largest_1, DType::kFloat32, {1});
  if (RunsOnCuda(stream)) return OnCuda<QuantizeAndMeasure>(stream, x_RC, amax_1, out, largest_1);
  if (!RunsOnCpu(stream)) return;
  float* const largest = largest_1.data<float>();
  *largest = std::max(*largest, LargestOf(stream, x_RC));
  QuantizeOnCpu(stream, x_RC, amax_1, out);
}

}  // namespace megatron::ops
