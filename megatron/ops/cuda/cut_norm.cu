// The ops of ops/cut_norm.h. A warp takes a row.
#include <type_traits>

#include "megatron/ops/cuda/column_sums.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cut_norm.h"

namespace megatron::ops::cuda {
namespace {

// A norm of this rank's columns, on the device.
template <typename T>
struct CutNorm {
  bool is_centered;
  float offset;  // added to gamma
  int64_t rows, columns;
  const T* gamma_H;
  const T* beta_H;  // null: there is none
  float* mean_T;    // null unless is_centered
  float* rstd_T;

  __device__ float Gamma(int64_t c) const { return ToFloat(gamma_H[c]) + offset; }
  __device__ float Mean(int64_t row) const { return is_centered ? mean_T[row] : 0; }
  __device__ float Normalized(int64_t row, float x) const { return (x - Mean(row)) * rstd_T[row]; }
};

template <typename T>
CutNorm<T> CutNormOf(T* type, const Norm& norm, const Tensor& x_TH, const NormTensors& tensors) {
  CutNorm<T> cut;
  cut.is_centered = norm.kind == Norm::kLayerNorm;
  cut.offset = norm.zero_centered_gamma ? 1 : 0;
  cut.rows = x_TH.dim(0);
  cut.columns = x_TH.dim(1);
  cut.gamma_H = As(type, tensors.gamma_H);
  cut.beta_H = As(type, tensors.beta_H);
  cut.mean_T = static_cast<float*>(tensors.mean_T.raw());
  cut.rstd_T = static_cast<float*>(tensors.rstd_T.raw());
  return cut;
}

__device__ int64_t WarpRow() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ int Lane() { return threadIdx.x % kWarp; }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumsKernel(bool is_centered, int64_t rows, int64_t columns, const T* x_TH, float* sums_T2) {
  const int64_t row = WarpRow();
  if (row >= rows) return;
  const T* const x = x_TH + row * columns;
  float mean = 0, squares = 0;
  if (is_centered) {
    for (int64_t c = Lane(); c < columns; c += kWarp) mean += ToFloat(x[c]);
    mean = WarpSum(mean) / static_cast<float>(columns);
  }
  for (int64_t c = Lane(); c < columns; c += kWarp) {
    const float apart = ToFloat(x[c]) - mean;
    squares += apart * apart;
  }
  squares = WarpSum(squares);
  if (Lane() > 0) return;
  sums_T2[2 * row] = mean;
  sums_T2[2 * row + 1] = squares;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(CutNorm<T> norm, float epsilon, int parts, const float* sums_PT2, const T* x_TH,
                  T* y_TH) {
  const int64_t row = WarpRow();
  if (row >= norm.rows) return;
  const auto sum = [&](int part, int which) {
    return sums_PT2[(part * norm.rows + row) * 2 + which];
  };
  float mean = 0, squares = 0;
  for (int part = 0; part < parts; ++part) mean += sum(part, 0);
  mean /= static_cast<float>(parts);
  for (int part = 0; part < parts; ++part) {
    const float apart = sum(part, 0) - mean;
    squares += sum(part, 1) + static_cast<float>(norm.columns) * apart * apart;
  }
  const float center = norm.is_centered ? mean : 0;
  const float rstd = 1 / sqrtf(squares / static_cast<float>(parts * norm.columns) + epsilon);
  if (Lane() == 0) {
    if (norm.is_centered) norm.mean_T[row] = mean;
    norm.rstd_T[row] = rstd;
  }
  const T* const x = x_TH + row * norm.columns;
  T* const y = y_TH + row * norm.columns;
  for (int64_t c = Lane(); c < norm.columns; c += kWarp) {
    const float beta = norm.beta_H == nullptr ? 0 : ToFloat(norm.beta_H[c]);
    y[c] = FromFloat<T>((ToFloat(x[c]) - center) * rstd * norm.Gamma(c) + beta);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GradientSumsKernel(CutNorm<T> norm, const T* dy_TH, const T* x_TH, float* sums_T2) {
  const int64_t row = WarpRow();
  if (row >= norm.rows) return;
  float sum = 0, along = 0;
  for (int64_t c = Lane(); c < norm.columns; c += kWarp) {
    const float d = ToFloat(dy_TH[row * norm.columns + c]) * norm.Gamma(c);
    sum += d;
    along += d * norm.Normalized(row, ToFloat(x_TH[row * norm.columns + c]));
  }
  sum = WarpSum(sum);
  along = WarpSum(along);
  if (Lane() > 0) return;
  sums_T2[2 * row] = sum;
  sums_T2[2 * row + 1] = along;
}

// dresidual, which may be dx, is null where there is none.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    InputGradientKernel(CutNorm<T> norm, float all_columns, const T* dy_TH, const T* x_TH,
                        const float* sums_T2, const T* dresidual_TH, T* dx_TH) {
  const int64_t row = WarpRow();
  if (row >= norm.rows) return;
  const float mean = norm.is_centered ? sums_T2[2 * row] / all_columns : 0;
  const float along = sums_T2[2 * row + 1] / all_columns;
  for (int64_t c = Lane(); c < norm.columns; c += kWarp) {
    const int64_t i = row * norm.columns + c;
    const float normalized = norm.Normalized(row, ToFloat(x_TH[i]));
    const float residual = dresidual_TH == nullptr ? 0 : ToFloat(dresidual_TH[i]);
    dx_TH[i] = FromFloat<T>(norm.rstd_T[row] *
                                (ToFloat(dy_TH[i]) * norm.Gamma(c) - mean - normalized * along) +
                            residual);
  }
}

// The gradients of gamma and beta: partial [2, slices, columns].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ParameterGradientsKernel(CutNorm<T> norm, const T* dy_TH, const T* x_TH, float* partial) {
  __shared__ SumsOfWarps<1> sums;
  SumSlice<float, 1>(norm.rows, norm.columns, sums, partial, [&](int64_t row, int64_t c) {
    const int64_t i = row * norm.columns + c;
    return Vector<float, 1>{{ToFloat(dy_TH[i]) * norm.Normalized(row, ToFloat(x_TH[i]))}};
  });
  __syncthreads();  // the sums of gamma's gradient have been read
  SumSlice<float, 1>(norm.rows, norm.columns, sums, partial + gridDim.y * norm.columns,
                     [&](int64_t row, int64_t c) {
                       return Vector<float, 1>{{ToFloat(dy_TH[row * norm.columns + c])}};
                     });
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.raw()); }

}  // namespace

void CutNormSums(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const Tensor& sums_T2) {
  if (x_TH.numel() == 0) return;
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    SumsKernel<T><<<Blocks(x_TH.dim(0), kWarps), kThreads, 0, Handle(stream)>>>(
        norm.kind == Norm::kLayerNorm, x_TH.dim(0), x_TH.dim(1), As(type, x_TH), FloatsOf(sums_T2));
  });
  CheckLaunched("sums of cut norms");
}

void CutNormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                    const Tensor& sums_PT2, const NormTensors& tensors, const Tensor& y_TH) {
  if (x_TH.numel() == 0) return;
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ForwardKernel<T><<<Blocks(x_TH.dim(0), kWarps), kThreads, 0, Handle(stream)>>>(
        CutNormOf(type, norm, x_TH, tensors), norm.epsilon, static_cast<int>(sums_PT2.dim(0)),
        FloatsOf(sums_PT2), As(type, x_TH), As(type, y_TH));
  });
  CheckLaunched("cut norm");
}

void CutNormGradientSums(const Stream& stream, const Norm& norm, const Tensor& dy_TH,
                         const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2) {
  if (x_TH.numel() == 0) return;
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    GradientSumsKernel<T><<<Blocks(x_TH.dim(0), kWarps), kThreads, 0, Handle(stream)>>>(
        CutNormOf(type, norm, x_TH, tensors), As(type, dy_TH), As(type, x_TH), FloatsOf(sums_T2));
  });
  CheckLaunched("gradient sums of cut norms");
}

void CutNormBackward(const Stream& stream, const Norm& norm, int64_t columns, const Tensor& dy_TH,
                     const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2,
                     const Tensor& dresidual_TH, const Tensor& dx_TH, const Tensor& dgamma_H,
                     const Tensor& dbeta_H, const Tensor& dbias_H) {
  if (x_TH.numel() == 0) return;
  const int64_t rows = x_TH.dim(0), mine = x_TH.dim(1), slices = SlicesOf(rows);
  auto* const partial = static_cast<float*>(
      stream.cuda()->Workspace(2 * slices * mine * static_cast<int64_t>(sizeof(float))));
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const CutNorm<T> cut = CutNormOf(type, norm, x_TH, tensors);
    // It reads dy, which dx may be.
    ParameterGradientsKernel<T><<<GridOfSlices(rows, mine, 1), kThreads, 0, Handle(stream)>>>(
        cut, As(type, dy_TH), As(type, x_TH), partial);
    CheckLaunched("parameter gradients of cut norms");
    InputGradientKernel<T><<<Blocks(rows, kWarps), kThreads, 0, Handle(stream)>>>(
        cut, static_cast<float>(columns), As(type, dy_TH), As(type, x_TH), FloatsOf(sums_T2),
        As(type, dresidual_TH), As(type, dx_TH));
    CheckLaunched("input gradients of cut norms");
  });
  AddSlices(partial, slices, mine, {FloatsOf(dgamma_H), FloatsOf(dbeta_H)}, Handle(stream));
  if (!dbias_H.empty()) AddColumnSums(stream, dx_TH, dbias_H);
}

MEGATRON_CUDA_KERNEL(CutNormSums);
MEGATRON_CUDA_KERNEL(CutNormForward);
MEGATRON_CUDA_KERNEL(CutNormGradientSums);
MEGATRON_CUDA_KERNEL(CutNormBackward);

}  // namespace megatron::ops::cuda
