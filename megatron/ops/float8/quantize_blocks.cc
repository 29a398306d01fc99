#include "megatron/ops/float8/quantize_blocks.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

float ToFloat(float x) { return x; }
using megatron::ToFloat;

// A form as its writer sees it: element (m, k) of the form is that of x at m * m_stride + k *
// k_stride.
struct Form {
  const Float8Matrix* out;
  int64_t m, k;         // the elements of x
  int64_t pitch, tail;  // the codes of a row, and those behind k, which are zero
  int64_t m_stride, k_stride;
  int64_t scales_pitch;
};

// Writes the codes of rows [m0, m1) and columns [k0, k1), which share a scale, and returns its
// inverse.
template <typename T>
float QuantizePart(const T* x, const Form& form, bool power_of_two, int64_t m0, int64_t m1,
                   int64_t k0, int64_t k1) {
  float amax = 0;
  for (int64_t m = m0; m < m1; ++m) {
    for (int64_t k = k0; k < k1; ++k) {
      const float magnitude = std::fabs(ToFloat(x[m * form.m_stride + k * form.k_stride]));
      amax = magnitude > amax ? magnitude : amax;
    }
  }
  const Float8Format format = form.out->format;
  float scale = Float8Scale(format, amax);
  if (power_of_two) scale = Float8PowerOfTwoBelow(scale);
  uint8_t* const codes = form.out->codes.data<uint8_t>();
  for (int64_t m = m0; m < m1; ++m) {
    for (int64_t k = k0; k < k1; ++k) {
      codes[m * form.pitch + k] =
          FloatToFloat8(format, ToFloat(x[m * form.m_stride + k * form.k_stride]) * scale);
    }
  }
  return 1 / scale;
}

// Writes rows [m0, m1), at most a block of them, and their scales.
template <typename T>
void QuantizeRows(const T* x, const Form& form, bool power_of_two, int64_t m0, int64_t m1) {
  float* const scales = form.out->inverse_scales.data<float>();
  for (int64_t k0 = 0; k0 < form.k; k0 += kFloat8Block) {
    const int64_t k1 = std::min(form.k, k0 + kFloat8Block), block = k0 / kFloat8Block;
    if (form.out->scaling == Float8Scaling::kBlocks) {
      scales[m0 / kFloat8Block * form.scales_pitch + block] =
          QuantizePart(x, form, power_of_two, m0, m1, k0, k1);
    } else {
      for (int64_t m = m0; m < m1; ++m) {
        scales[block * form.scales_pitch + m] =
            QuantizePart(x, form, power_of_two, m, m + 1, k0, k1);
      }
    }
  }
  uint8_t* const codes = form.out->codes.data<uint8_t>();
  for (int64_t m = m0; m < m1; ++m) std::fill_n(codes + m * form.pitch + form.k, form.tail, 0);
}

template <typename T>
void QuantizeForm(const Stream& stream, const T* x, const Form& form, bool power_of_two) {
  if (form.out->codes.empty()) return;
  const Tensor& scales = form.out->inverse_scales;
  std::fill_n(scales.data<float>(), scales.numel(), 1.0f);
  const int64_t blocks = (form.m + kFloat8Block - 1) / kFloat8Block;
  ParallelElements(stream.pool(), blocks, 1, [&](int64_t begin, int64_t count) {
    for (int64_t block = begin; block < begin + count; ++block) {
      QuantizeRows(x, form, power_of_two, block * kFloat8Block,
                   std::min(form.m, (block + 1) * kFloat8Block));
    }
  });
}

template <typename T>
void QuantizeBoth(const Stream& stream, const Tensor& x, bool power_of_two,
                  const Float8Matrix& as_it_is, const Float8Matrix& transposed) {
  const int64_t rows = x.dim(0), columns = x.dim(1), padded = Float8Padded(rows);
  const auto pitch = [](const Float8Matrix& out) {
    return out.codes.empty() ? 0 : out.inverse_scales.dim(1);
  };
  QuantizeForm(stream, x.data<T>(),
               {&as_it_is, rows, columns, columns, 0, columns, 1, pitch(as_it_is)}, power_of_two);
  QuantizeForm(stream, x.data<T>(),
               {&transposed, columns, rows, padded, padded - rows, 1, columns, pitch(transposed)},
               power_of_two);
}

void CheckForm(const Stream& stream, const Float8Matrix& out, int64_t rows, int64_t columns) {
  if (out.codes.empty()) return;
  CHECK(out.scaling != Float8Scaling::kTensor);
  CheckContiguous(stream, out.codes, DType::kUInt8, {rows, columns});
  CheckContiguous(stream, out.inverse_scales, DType::kFloat32,
                  Float8ScalesShape(out.scaling, rows, columns));
}

}  // namespace

void QuantizeBlocks(const Stream& stream, const Tensor& x_RC, bool power_of_two,
                    const Float8Matrix& as_it_is, const Float8Matrix& transposed) {
  CheckFloating(x_RC);
  const int64_t rows = x_RC.dim(0), columns = x_RC.dim(1);
  CHECK_EQ(columns % kFloat8Alignment, 0) << x_RC;
  CheckContiguous(stream, x_RC, x_RC.dtype(), {rows, columns});
  CheckForm(stream, as_it_is, rows, columns);
  CheckForm(stream, transposed, columns, Float8Padded(rows));
  CHECK(as_it_is.codes.empty() || transposed.codes.empty() ||
        as_it_is.scaling == transposed.scaling);
  if (RunsOnCuda(stream))
    return OnCuda<QuantizeBlocks>(stream, x_RC, power_of_two, as_it_is, transposed);
  if (!RunsOnCpu(stream)) return;
  switch (x_RC.dtype()) {
    case DType::kBFloat16:
      return QuantizeBoth<BFloat16>(stream, x_RC, power_of_two, as_it_is, transposed);
    case DType::kFloat16:
      return QuantizeBoth<Float16>(stream, x_RC, power_of_two, as_it_is, transposed);
    default:
      return QuantizeBoth<float>(stream, x_RC, power_of_two, as_it_is, transposed);
  }
}

}  // namespace megatron::ops
