// Launchers of the LayerNorm and RMSNorm kernels. Callers use the ops of "megatron/ops/norm.h".
//
// Legend: T rows, H columns. Statistics and gradients of parameters are fp32, and so is the
// arithmetic. Every sum has a fixed order, so two runs on one kind of device give the same bits:
// rows are reduced by a tree over a warp or a block; the gradients of gamma and beta are summed in
// two stages, rows within a slice, then slices.
//
// Launches are asynchronous on the stream; pointers are device memory. A failed launch is a CHECK.
#ifndef MEGATRON_OPS_CUDA_LAYER_NORM_H_
#define MEGATRON_OPS_CUDA_LAYER_NORM_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

struct CUstream_st;

namespace megatron::ops::cuda {

// Up to three leading dims of a tensor whose last dim is contiguous; strides in elements.
struct RowLayout {
  int64_t sizes[3] = {1, 1, 0};
  int64_t strides[3] = {0, 0, 0};

  static RowLayout Contiguous(int64_t rows, int64_t hidden) {
    return {{1, 1, rows}, {0, 0, hidden}};
  }
  constexpr int64_t rows() const { return sizes[0] * sizes[1] * sizes[2]; }
};

struct LayerNormShape {
  DType dtype = DType::kFloat32;  // the dtype of x, y, gamma, beta, dy, dresidual and dx
  int64_t hidden = 0;
  bool rms = false;                  // no mean: mean_T and beta_H are unused
  bool zero_centered_gamma = false;  // the scale is 1 + gamma
  float epsilon = 1e-5f;             // forward only: rstd_T holds its effect
};

struct LayerNormForwardArgs {
  LayerNormShape shape;
  RowLayout x_rows, y_rows;  // rows of equal sizes
  const void* x_TH = nullptr;
  const void* gamma_H = nullptr;
  const void* beta_H = nullptr;  // may be null
  void* y_TH = nullptr;          // may be x_TH
  float* mean_T = nullptr;
  float* rstd_T = nullptr;
};

struct LayerNormBackwardArgs {
  LayerNormShape shape;
  RowLayout dy_rows, x_rows, dresidual_rows, dx_rows;  // rows of equal sizes
  const void* dy_TH = nullptr;
  const void* x_TH = nullptr;
  const void* gamma_H = nullptr;
  const float* mean_T = nullptr;
  const float* rstd_T = nullptr;
  const void* dresidual_TH = nullptr;  // may be null; added to dx
  void* dx_TH = nullptr;               // =, may be dy_TH or dresidual_TH
  float* dgamma_H = nullptr;           // +=, may be null
  float* dbeta_H = nullptr;            // +=, may be null
  float* dbias_H = nullptr;            // += column sums of dx, may be null
  float* workspace = nullptr;          // LayerNormBackwardWorkspace() floats
};

// y = (x - mean) * rstd * gamma + beta, row by row; writes the statistics for backward.
void LaunchLayerNormForward(const LayerNormForwardArgs& args, CUstream_st* stream);

int64_t LayerNormBackwardWorkspace(int64_t hidden);
// Returns whether the kernel for these operands computes dbias; else that has to be null.
bool LayerNormBackwardSumsDx(const LayerNormBackwardArgs& args);
// sums (fp32) += column sums of x, contiguous, in the order in which the backward sums those of dx:
// so it does not matter to a bias whether its gradient comes with that of a norm. Returns false,
// and does nothing, where the backward does not sum dx either.
bool AddColumnSumsAsLayerNorm(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H);
void LaunchLayerNormBackward(const LayerNormBackwardArgs& args, CUstream_st* stream);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_LAYER_NORM_H_
