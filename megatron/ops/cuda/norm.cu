// The ops of ops/norm.h, by the launchers of layer_norm.h, and a kernel for the residual sum
// followed by the norm: x and the residual are read once, the sum and its norm are written once.
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dropout.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/layer_norm.cuh"
#include "megatron/ops/cuda/layer_norm.h"
#include "megatron/ops/norm.h"

namespace megatron::ops::cuda {
namespace {

// The layout of all dims but the last; there are at most three.
RowLayout LayoutOf(const Tensor& x) {
  RowLayout layout = {{1, 1, 1}, {0, 0, 0}};
  for (int d = x.rank() - 2, i = 2; d >= 0; --d, --i) {
    layout.sizes[i] = x.dim(d);
    layout.strides[i] = x.stride(d);
  }
  return layout;
}

LayerNormShape ShapeOf(const Norm& norm, const Tensor& x) {
  return {x.dtype(), x.dim(-1), norm.kind == Norm::kRmsNorm, norm.zero_centered_gamma,
          norm.epsilon};
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.raw()); }

LayerNormForwardArgs ForwardArgsOf(const Norm& norm, const Tensor& x_TH, const NormTensors& tensors,
                                   const Tensor& y_TH) {
  LayerNormForwardArgs args;
  args.shape = ShapeOf(norm, x_TH);
  args.x_rows = LayoutOf(x_TH);
  args.y_rows = LayoutOf(y_TH);
  args.x_TH = x_TH.raw();
  args.gamma_H = tensors.gamma_H.raw();
  args.beta_H = tensors.beta_H.raw();
  args.y_TH = y_TH.raw();
  args.mean_T = FloatsOf(tensors.mean_T);
  args.rstd_T = FloatsOf(tensors.rstd_T);
  return args;
}

// The shared memory that a block has without asking for more, less `partial`. Wider rows need not
// be fast.
constexpr int64_t kMostSharedBytes = (48 << 10) - kWarps * sizeof(float);

// Each thread keeps its vectors of the sum in shared memory, rounded as they are written. No other
// thread reads them.
template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kThreads, 5)
    ResidualNormKernel(LayerNormForwardArgs args, ResidualSum<T> sum, T* sum_TH) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float partial[kWarps];
  const int64_t row = TeamRow<kTeam>();
  if (row >= sum.tokens) return;
  T* const kept = reinterpret_cast<T*>(memory) + threadIdx.x / kTeam * sum.columns;
  T* const written = sum_TH + row * sum.columns;
  for (int64_t i = threadIdx.x % kTeam; i < sum.columns / N; i += kTeam) {
    const auto values = sum.template At<N>(row, i);
    Store<T, N>(kept, i, values);
    Store<T, N>(written, i, values);
  }
  NormalizeRow<T, N, kTeam>(args, row, partial, [&](int64_t i) { return Load<T, N>(kept, i); });
}

template <typename T, int kTeam>
void LaunchOf(const Stream& stream, const LayerNormForwardArgs& args, const ResidualSum<T>& sum,
              T* sum_TH) {
  constexpr int kTeams = kThreads / kTeam;
  const auto bytes = kTeams * sum.columns * sizeof(T);
  ResidualNormKernel<T, kVector<T>, kTeam>
      <<<Blocks(sum.tokens, kTeams), kThreads, bytes, Handle(stream)>>>(args, sum, sum_TH);
  CheckLaunched("residual norm");
}

// Returns whether sum and norm can be computed in one kernel: both use vectors (else they would add
// up in different orders), and a row of the sum fits into shared memory.
template <typename T>
bool Fuses(const LayerNormForwardArgs& args, const ResidualSum<T>& sum, const T* sum_TH) {
  return TakesVectors<T>(args) && sum.TakesVectors({sum_TH}) &&
         sum.columns * static_cast<int64_t>(sizeof(T)) <= kMostSharedBytes;
}

}  // namespace

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH) {
  LaunchLayerNormForward(ForwardArgsOf(norm, x_TH, tensors, y_TH), Handle(stream));
}

void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH) {
  if (x_TH.numel() == 0) return;
  const LayerNormForwardArgs args = ForwardArgsOf(norm, sum_TH, tensors, y_TH);
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto sum = MakeResidualSum(type, dropout, x_TH, bias_H, residual_TH);
    if (!Fuses(args, sum, As(type, sum_TH))) {
      OnCuda<ops::BiasDropoutAdd>(stream, dropout, x_TH, bias_H, residual_TH, sum_TH);
      LaunchLayerNormForward(args, Handle(stream));
    } else if (TakesWarp<T>(sum.columns)) {
      LaunchOf<T, kWarp>(stream, args, sum, As(type, sum_TH));
    } else {
      LaunchOf<T, kThreads>(stream, args, sum, As(type, sum_TH));
    }
  });
}

void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H, const Tensor& dbias_H) {
  LayerNormBackwardArgs args;
  args.shape = ShapeOf(norm, x_TH);
  args.dy_rows = LayoutOf(dy_TH);
  args.x_rows = LayoutOf(x_TH);
  args.dx_rows = LayoutOf(dx_TH);
  args.dy_TH = dy_TH.raw();
  args.x_TH = x_TH.raw();
  args.gamma_H = tensors.gamma_H.raw();
  args.mean_T = FloatsOf(tensors.mean_T);
  args.rstd_T = FloatsOf(tensors.rstd_T);
  if (!dresidual_TH.empty()) args.dresidual_rows = LayoutOf(dresidual_TH);
  args.dresidual_TH = dresidual_TH.raw();
  args.dx_TH = dx_TH.raw();
  args.dgamma_H = FloatsOf(dgamma_H);
  args.dbeta_H = FloatsOf(dbeta_H);
  const int64_t workspace = LayerNormBackwardWorkspace(args.shape.hidden);
  args.workspace = static_cast<float*>(
      stream.cuda()->Workspace(workspace * static_cast<int64_t>(sizeof(float))));
  const bool sums_dx = LayerNormBackwardSumsDx(args);
  if (sums_dx) args.dbias_H = FloatsOf(dbias_H);
  LaunchLayerNormBackward(args, Handle(stream));
  if (!sums_dx && !dbias_H.empty()) AddColumnSums(stream, dx_TH, dbias_H);
}

MEGATRON_CUDA_KERNEL(NormForward);
MEGATRON_CUDA_KERNEL(ResidualNormForward);
MEGATRON_CUDA_KERNEL(NormBackward);

}  // namespace megatron::ops::cuda
