// Linear layers by cuBLASLt.
#include "megatron/ops/linear.h"

#include "glog/logging.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/gemm/gemm.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/ops/cuda/gemm/planned_product.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// Returns false, and does nothing, if cuBLASLt cannot do both in one product. It writes the bias's
// gradient and does not add it to what is there.
bool BackwardWeightAndBias(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                           const Tensor& dw_OI, const Tensor& dbias_O) {
  char* const workspace =
      static_cast<char*>(stream.cuda()->Workspace(kGemmWorkspaceBytes + dbias_O.bytes()));
  const Tensor sums_O(workspace + kGemmWorkspaceBytes, DType::kFloat32, dbias_O.shape(),
                      dbias_O.device());
  if (!RunPlannedIfPossible(stream, BackwardWeightAndBiasGemm(dy_TO, x_TI, dw_OI, sums_O)))
    return false;
  OnCuda<ops::Add>(stream, sums_O, dbias_O);
  return true;
}

}  // namespace

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  RunPlanned(stream, ForwardGemm(x_TI, w_OI, bias_O, y_TO));
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  CHECK(pre_TO.is_contiguous() && y_TO.is_contiguous()) << pre_TO << " " << y_TO;
  // The activation is not an epilogue of the product: cuBLASLt uses its own tanh, on sums that are
  // not rounded, so activations that are recomputed from pre_TO would not have the same bits.
  cuda::LinearForward(stream, x_TI, w_OI, bias_O, pre_TO);
  OnCuda<ops::ActivationForward>(stream, activation, pre_TO, y_TO);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  RunPlanned(stream, BackwardInputGemm(dy_TO, w_OI, dx_TI));
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI) {
  CHECK(pre_TI.is_contiguous() && dx_TI.is_contiguous()) << pre_TI << " " << dx_TI;
  cuda::LinearBackwardInput(stream, dy_TO, w_OI, dx_TI);
  OnCuda<ops::ActivationBackward>(stream, activation, dx_TI, pre_TI, dx_TI);
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  if (dy_TO.dim(0) == 0) return;
  const bool fuses =
      !dbias_O.empty() && dw_OI.numel() > 0 && ProcessGemmPlanner().fuses_bias_gradients();
  if (fuses && BackwardWeightAndBias(stream, dy_TO, x_TI, dw_OI, dbias_O)) return;
  RunPlanned(stream, BackwardWeightGemm(dy_TO, x_TI, dw_OI));
  if (!dbias_O.empty()) AddColumnSums(stream, dy_TO, dbias_O);
}

MEGATRON_CUDA_KERNEL(LinearForward);
MEGATRON_CUDA_KERNEL(LinearActivationForward);
MEGATRON_CUDA_KERNEL(LinearBackwardInput);
MEGATRON_CUDA_KERNEL(LinearActivationBackwardInput);
MEGATRON_CUDA_KERNEL(LinearBackwardWeight);

}  // namespace megatron::ops::cuda
