#include "megatron/ops/cut_norm.h"

#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/rows.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

void Check(const Stream& stream, const Norm& norm, const Tensor& x_TH, const NormTensors& tensors) {
  CheckFloating(x_TH);
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, x_TH, x_TH.dtype(), {rows, columns});
  CheckContiguous(stream, tensors.gamma_H, x_TH.dtype(), {columns});
  if (!tensors.beta_H.empty()) CheckContiguous(stream, tensors.beta_H, x_TH.dtype(), {columns});
  if (norm.kind == Norm::kLayerNorm)
    CheckContiguous(stream, tensors.mean_T, DType::kFloat32, {rows});
  CheckContiguous(stream, tensors.rstd_T, DType::kFloat32, {rows});
}

float AsFloat(float value) { return value; }
float AsFloat(BFloat16 value) { return ToFloat(value); }
float AsFloat(Float16 value) { return ToFloat(value); }
void Set(float value, float* out) { *out = value; }
void Set(float value, BFloat16* out) { *out = ToBFloat16(value); }
void Set(float value, Float16* out) { *out = ToFloat16(value); }

template <typename Body>
void WithType(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float());
    case DType::kBFloat16:
      return body(BFloat16());
    case DType::kFloat16:
      return body(Float16());
    default:
      LOG(FATAL) << "no norm of " << Name(dtype);
  }
}

// One row of a tensor as floats; an empty tensor is zeros.
template <typename T>
struct Row {
  Row(const Tensor& tensor, int64_t row)
      : values(tensor.empty() ? nullptr : static_cast<T*>(RowOf(tensor, row))) {}
  float operator[](int64_t c) const { return values == nullptr ? 0 : AsFloat(values[c]); }
  T* values;
};

// A norm's parameters and a row's statistics.
template <typename T>
struct RowOfNorm {
  RowOfNorm(const Norm& norm, const NormTensors& tensors, int64_t row)
      : gamma(tensors.gamma_H, 0),
        beta(tensors.beta_H, 0),
        offset(norm.zero_centered_gamma ? 1 : 0),
        mean(norm.kind == Norm::kLayerNorm ? tensors.mean_T.data<float>()[row] : 0),
        rstd(tensors.rstd_T.data<float>()[row]) {}
  float Gamma(int64_t c) const { return gamma[c] + offset; }
  float Normalized(float x) const { return (x - mean) * rstd; }

  Row<T> gamma, beta;
  float offset, mean, rstd;
};

}  // namespace

void CutNormSums(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const Tensor& sums_T2) {
  CheckFloating(x_TH);
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, x_TH, x_TH.dtype(), {rows, columns});
  CheckContiguous(stream, sums_T2, DType::kFloat32, {rows, 2});
  if (RunsOnCuda(stream)) return OnCuda<CutNormSums>(stream, norm, x_TH, sums_T2);
  if (!RunsOnCpu(stream)) return;
  WithType(x_TH.dtype(), [&](auto type) {
    ParallelRows(stream.pool(), rows, columns, [&](int64_t row) {
      const Row<decltype(type)> x(x_TH, row);
      double mean = 0, squares = 0;
      if (norm.kind == Norm::kLayerNorm) {
        for (int64_t c = 0; c < columns; ++c) mean += x[c];
        mean /= static_cast<double>(columns);
      }
      for (int64_t c = 0; c < columns; ++c) squares += (x[c] - mean) * (x[c] - mean);
      float* const sums = sums_T2.data<float>() + 2 * row;
      sums[0] = static_cast<float>(mean);
      sums[1] = static_cast<float>(squares);
    });
  });
}

void CutNormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                    const Tensor& sums_PT2, const NormTensors& tensors, const Tensor& y_TH) {
  Check(stream, norm, x_TH, tensors);
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1), parts = sums_PT2.dim(0);
  CheckContiguous(stream, sums_PT2, DType::kFloat32, {parts, rows, 2});
  CheckContiguous(stream, y_TH, x_TH.dtype(), x_TH.shape());
  if (RunsOnCuda(stream))
    return OnCuda<CutNormForward>(stream, norm, x_TH, sums_PT2, tensors, y_TH);
  if (!RunsOnCpu(stream)) return;
  WithType(x_TH.dtype(), [&](auto type) {
    using T = decltype(type);
    ParallelRows(stream.pool(), rows, columns, [&](int64_t row) {
      const auto sum = [&](int64_t part, int which) -> double {
        return sums_PT2.data<float>()[(part * rows + row) * 2 + which];
      };
      double mean = 0, squares = 0;
      for (int64_t part = 0; part < parts; ++part) mean += sum(part, 0);
      mean /= static_cast<double>(parts);
      for (int64_t part = 0; part < parts; ++part) {
        const double apart = sum(part, 0) - mean;
        squares += sum(part, 1) + static_cast<double>(columns) * apart * apart;
      }
      const double variance = squares / static_cast<double>(parts * columns);
      if (norm.kind == Norm::kLayerNorm)
        tensors.mean_T.data<float>()[row] = static_cast<float>(mean);
      tensors.rstd_T.data<float>()[row] =
          static_cast<float>(1 / std::sqrt(variance + static_cast<double>(norm.epsilon)));
      const Row<T> x(x_TH, row), y(y_TH, row);
      const RowOfNorm<T> of(norm, tensors, row);
      for (int64_t c = 0; c < columns; ++c)
        Set(of.Normalized(x[c]) * of.Gamma(c) + of.beta[c], &y.values[c]);
    });
  });
}

void CutNormGradientSums(const Stream& stream, const Norm& norm, const Tensor& dy_TH,
                         const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2) {
  Check(stream, norm, x_TH, tensors);
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, dy_TH, x_TH.dtype(), x_TH.shape());
  CheckContiguous(stream, sums_T2, DType::kFloat32, {rows, 2});
  if (RunsOnCuda(stream))
    return OnCuda<CutNormGradientSums>(stream, norm, dy_TH, x_TH, tensors, sums_T2);
  if (!RunsOnCpu(stream)) return;
  WithType(x_TH.dtype(), [&](auto type) {
    using T = decltype(type);
    ParallelRows(stream.pool(), rows, columns, [&](int64_t row) {
      const Row<T> x(x_TH, row), dy(dy_TH, row);
      const RowOfNorm<T> of(norm, tensors, row);
      double sum = 0, along = 0;
      for (int64_t c = 0; c < columns; ++c) {
        const double d = double{dy[c]} * of.Gamma(c);
        sum += d;
        along += d * of.Normalized(x[c]);
      }
      float* const sums = sums_T2.data<float>() + 2 * row;
      sums[0] = static_cast<float>(sum);
      sums[1] = static_cast<float>(along);
    });
  });
}

void CutNormBackward(const Stream& stream, const Norm& norm, int64_t columns, const Tensor& dy_TH,
                     const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2,
                     const Tensor& dresidual_TH, const Tensor& dx_TH, const Tensor& dgamma_H,
                     const Tensor& dbeta_H, const Tensor& dbias_H) {
  Check(stream, norm, x_TH, tensors);
  const int64_t rows = x_TH.dim(0), mine = x_TH.dim(1);
  for (const Tensor& tensor : {dy_TH, dx_TH})
    CheckContiguous(stream, tensor, x_TH.dtype(), x_TH.shape());
  if (!dresidual_TH.empty()) CheckContiguous(stream, dresidual_TH, x_TH.dtype(), x_TH.shape());
  CheckContiguous(stream, sums_T2, DType::kFloat32, {rows, 2});
  CheckContiguous(stream, dgamma_H, DType::kFloat32, {mine});
  if (!dbeta_H.empty()) CheckContiguous(stream, dbeta_H, DType::kFloat32, {mine});
  if (RunsOnCuda(stream)) {
    return OnCuda<CutNormBackward>(stream, norm, columns, dy_TH, x_TH, tensors, sums_T2,
                                   dresidual_TH, dx_TH, dgamma_H, dbeta_H, dbias_H);
  }
  if (RunsOnCpu(stream)) {
    float* const dbeta = dbeta_H.empty() ? nullptr : dbeta_H.data<float>();
    const bool centered = norm.kind == Norm::kLayerNorm;
    WithType(x_TH.dtype(), [&](auto type) {
      using T = decltype(type);
      ParallelRowsWithSums(
          stream.pool(), rows, {mine, {dgamma_H.data<float>(), dbeta}},
          [&](int64_t row, float* sums) {
            const Row<T> x(x_TH, row), dy(dy_TH, row), residual(dresidual_TH, row), dx(dx_TH, row);
            const RowOfNorm<T> of(norm, tensors, row);
            const float* const of_row = sums_T2.data<float>() + 2 * row;
            const float mean = centered ? of_row[0] / static_cast<float>(columns) : 0;
            const float along = of_row[1] / static_cast<float>(columns);
            for (int64_t c = 0; c < mine; ++c) {
              const float d = dy[c], normalized = of.Normalized(x[c]);
              sums[c] += d * normalized;
              if (dbeta != nullptr) sums[mine + c] += d;
              Set(of.rstd * (d * of.Gamma(c) - mean - normalized * along) + residual[c],
                  &dx.values[c]);
            }
          });
    });
  }
  if (!dbias_H.empty()) BiasBackward(stream, dx_TH, dbias_H);
}

}  // namespace megatron::ops
