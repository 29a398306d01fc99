// ops/norm.h in terms of the launchers of layer_norm.h.
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/cuda/layer_norm.h"

namespace megatron::ops::cuda {
namespace {

// All dims but the last, of which there are at most three.
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

}  // namespace

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH) {
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
  LaunchLayerNormForward(args, Handle(stream));
}

void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH) {
  cuda::BiasDropoutAdd(stream, dropout, x_TH, bias_H, residual_TH, sum_TH);
  cuda::NormForward(stream, norm, sum_TH, tensors, y_TH);
}

void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H) {
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
  LaunchLayerNormBackward(args, Handle(stream));
}

}  // namespace megatron::ops::cuda
