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
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// Room in the stream's workspace for the sums of a product's epilogue, which writes them and does
// not add them to a bias's gradient.
Tensor SumsOfEpilogue(const Stream& stream, DType dtype, const Tensor& dbias) {
  char* const workspace =
      static_cast<char*>(stream.cuda()->Workspace(kGemmWorkspaceBytes + dbias.bytes()));
  return Tensor(workspace + kGemmWorkspaceBytes, dtype, dbias.shape(), dbias.device());
}

// Returns whether the run wants the GELU beside a product to be its epilogue, and cuBLASLt's rules
// for `pre` allow it.
bool FusesGelu(FuseGelu wanted, Activation activation, const Tensor& pre) {
  constexpr int64_t kRowMultiple = 8;
  return activation == Activation::kGeluTanh && ProcessGemmPlanner().fuse_gelu() >= wanted &&
         pre.dim(1) % kRowMultiple == 0;
}

// Returns false, and does nothing, if cuBLASLt cannot do this in one product.
bool BackwardInputGelu(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                       const Tensor& pre_TI, const Tensor& dx_TI, const Tensor& dbias_I) {
  if (dx_TI.numel() == 0) return true;
  if (dbias_I.empty()) {
    return RunPlannedIfPossible(stream, BackwardInputGeluGemm(dy_TO, w_OI, pre_TI, dx_TI, dbias_I));
  }
  const Tensor sums_I = SumsOfEpilogue(stream, dx_TI.dtype(), dbias_I);
  if (!RunPlannedIfPossible(stream, BackwardInputGeluGemm(dy_TO, w_OI, pre_TI, dx_TI, sums_I)))
    return false;
  AddRow(stream, sums_I, dbias_I);
  return true;
}

// Returns false, and does nothing, if cuBLASLt cannot do both in one product.
bool BackwardWeightAndBias(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                           const Tensor& dw_OI, const Tensor& dbias_O) {
  const Tensor sums_O = SumsOfEpilogue(stream, DType::kFloat32, dbias_O);
  if (!RunPlannedIfPossible(stream, BackwardWeightAndBiasGemm(dy_TO, x_TI, dw_OI, sums_O)))
    return false;
  AddRow(stream, sums_O, dbias_O);
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
  if (FusesGelu(FuseGelu::kBoth, activation, pre_TO) &&
      RunPlannedIfPossible(stream, ForwardGeluGemm(x_TI, w_OI, bias_O, pre_TO, y_TO))) {
    return;
  }
  cuda::LinearForward(stream, x_TI, w_OI, bias_O, pre_TO);
  OnCuda<ops::ActivationForward>(stream, activation, pre_TO, y_TO);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  RunPlanned(stream, BackwardInputGemm(dy_TO, w_OI, dx_TI));
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI,
                                   const Tensor& dbias_I) {
  CHECK(pre_TI.is_contiguous() && dx_TI.is_contiguous()) << pre_TI << " " << dx_TI;
  if (FusesGelu(FuseGelu::kBackward, activation, pre_TI) &&
      BackwardInputGelu(stream, dy_TO, w_OI, pre_TI, dx_TI, dbias_I)) {
    return;
  }
  cuda::LinearBackwardInput(stream, dy_TO, w_OI, dx_TI);
  if (dbias_I.empty()) {
    OnCuda<ops::ActivationBackward>(stream, activation, dx_TI, pre_TI, dx_TI);
  } else {
    OnCuda<ops::ActivationBackwardAndBias>(stream, activation, dx_TI, pre_TI, dx_TI, dbias_I);
  }
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
