#include "megatron/ops/norm.h"

#include "glog/logging.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/row_kernels.h"
#include "megatron/ops/cpu/rows.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// Rows with any strides, each contiguous.
void CheckRows(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape) {
  CheckTensor(stream, tensor, dtype, shape);
  CHECK(shape.rank() >= 2 && shape.rank() <= 4) << tensor;
  CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1) << tensor;
}

void CheckStatistics(const Stream& stream, const Tensor& statistics, int64_t rows) {
  CheckContiguous(stream, statistics, DType::kFloat32, statistics.shape());
  CHECK_EQ(statistics.numel(), rows) << statistics;
}

int64_t Rows(const Tensor& x) {
  int64_t rows = 1;
  for (int d = 0; d < x.rank() - 1; ++d) rows *= x.dim(d);
  return rows;
}

void CheckNorm(const Stream& stream, const Norm& norm, const Tensor& x,
               const NormTensors& tensors) {
  CheckFloating(x);
  CheckRows(stream, x, x.dtype(), x.shape());
  CHECK_GT(x.dim(-1), 0) << x;
  CheckContiguous(stream, tensors.gamma_H, x.dtype(), {x.dim(-1)});
  if (!tensors.beta_H.empty()) CheckContiguous(stream, tensors.beta_H, x.dtype(), {x.dim(-1)});
  if (norm.kind == Norm::kLayerNorm) CheckStatistics(stream, tensors.mean_T, Rows(x));
  CheckStatistics(stream, tensors.rstd_T, Rows(x));
}

RowNorm NormOfRows(const Norm& norm, const Tensor& x, const NormTensors& tensors) {
  RowNorm out;
  out.dtype = x.dtype();
  out.columns = x.dim(-1);
  out.centered = norm.kind == Norm::kLayerNorm;
  out.zero_centered_gamma = norm.zero_centered_gamma;
  out.epsilon = norm.epsilon;
  out.gamma = tensors.gamma_H.raw();
  out.beta = tensors.beta_H.raw();
  return out;
}

void NormOneRow(const RowNorm& norm, const Tensor& x, const NormTensors& tensors, const Tensor& y,
                int64_t row) {
  float* mean = norm.centered ? tensors.mean_T.data<float>() + row : nullptr;
  ActiveRowKernels().norm(norm, RowOf(x, row), RowOf(y, row), mean,
                          tensors.rstd_T.data<float>() + row);
}

}  // namespace

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH) {
  CheckNorm(stream, norm, x_TH, tensors);
  CheckRows(stream, y_TH, x_TH.dtype(), x_TH.shape());
  if (RunsOnCuda(stream)) return OnCuda<NormForward>(stream, norm, x_TH, tensors, y_TH);
  if (!RunsOnCpu(stream)) return;
  const RowNorm row_norm = NormOfRows(norm, x_TH, tensors);
  ParallelRows(stream.pool(), Rows(x_TH), x_TH.dim(-1),
               [&](int64_t row) { NormOneRow(row_norm, x_TH, tensors, y_TH, row); });
}

void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH) {
  const DType dtype = x_TH.dtype();
  const int64_t tokens = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, x_TH, dtype, {tokens, columns});
  if (!bias_H.empty()) CheckContiguous(stream, bias_H, dtype, {columns});
  if (!residual_TH.empty()) CheckContiguous(stream, residual_TH, dtype, {tokens, columns});
  CheckContiguous(stream, sum_TH, dtype, {tokens, columns});
  CheckRows(stream, y_TH, dtype, {tokens, columns});
  CheckNorm(stream, norm, sum_TH, tensors);
  CheckDropout(stream, dropout, tokens);
  if (RunsOnCuda(stream)) {
    return OnCuda<ResidualNormForward>(stream, norm, dropout, x_TH, bias_H, residual_TH, sum_TH,
                                       tensors, y_TH);
  }
  if (!RunsOnCpu(stream)) return;
  const RowNorm row_norm = NormOfRows(norm, sum_TH, tensors);
  ParallelRows(stream.pool(), tokens, columns, [&](int64_t row) {
    ActiveRowKernels().bias_dropout_add(dtype, DropoutOfRow(dropout, row), RowOf(x_TH, row),
                                        bias_H.raw(), RowOf(residual_TH, row), RowOf(sum_TH, row),
                                        columns);
    NormOneRow(row_norm, sum_TH, tensors, y_TH, row);
  });
}

void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H, const Tensor& dbias_H) {
  const Shape& shape = x_TH.shape();
  CheckNorm(stream, norm, x_TH, tensors);
  CheckRows(stream, dy_TH, x_TH.dtype(), shape);
  if (!dresidual_TH.empty()) CheckRows(stream, dresidual_TH, x_TH.dtype(), shape);
  CheckRows(stream, dx_TH, x_TH.dtype(), shape);
  if (!dgamma_H.empty()) CheckContiguous(stream, dgamma_H, DType::kFloat32, {shape[-1]});
  if (!dbeta_H.empty()) CheckContiguous(stream, dbeta_H, DType::kFloat32, {shape[-1]});
  if (!dbias_H.empty()) {
    CheckContiguous(stream, dx_TH, dx_TH.dtype(), {shape[0], shape[1]});
    CheckContiguous(stream, dbias_H, DType::kFloat32, {shape[1]});
  }
  if (RunsOnCuda(stream)) {
    return OnCuda<NormBackward>(stream, norm, dy_TH, x_TH, tensors, dresidual_TH, dx_TH, dgamma_H,
                                dbeta_H, dbias_H);
  }
  if (!RunsOnCpu(stream)) return;
  const RowNorm row_norm = NormOfRows(norm, x_TH, tensors);
  const float* mean = row_norm.centered ? tensors.mean_T.data<float>() : nullptr;
  const float* rstd = tensors.rstd_T.data<float>();
  const auto backward = [&](int64_t row, float* sums) {
    ActiveRowKernels().norm_backward(
        row_norm, {RowOf(dy_TH, row), RowOf(x_TH, row), mean == nullptr ? 0 : mean[row], rstd[row],
                   RowOf(dresidual_TH, row), RowOf(dx_TH, row), sums,
                   sums == nullptr || dbeta_H.empty() ? nullptr : sums + shape[-1]});
  };
  if (dgamma_H.empty() && dbeta_H.empty()) {
    ParallelRows(stream.pool(), Rows(x_TH), shape[-1],
                 [&](int64_t row) { backward(row, nullptr); });
  } else {
    float* outs[2] = {static_cast<float*>(dgamma_H.raw()), static_cast<float*>(dbeta_H.raw())};
    ParallelRowsWithSums(stream.pool(), Rows(x_TH), {shape[-1], {outs[0], outs[1]}}, backward);
  }
  if (!dbias_H.empty()) BiasBackward(stream, dx_TH, dbias_H);
}

}  // namespace megatron::ops
