// Linear layers by cuBLASLt.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/gemm/blas_product.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// A product with the kernel chosen for it. Kept for the life of the program.
struct Plan {
  Plan(void* handle, const Gemm& gemm) : product(handle, gemm, BlasProduct::kCandidates) {}

  BlasProduct product;
  int candidate = 0;
};

// Plans by device and product. Streams of several threads may ask at once.
const Plan& PlanFor(CudaStream* stream, const Gemm& gemm, const GemmOperands& operands) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const plans = new std::map<std::pair<int, Gemm>, std::unique_ptr<Plan>>;
  const std::pair<int, Gemm> key = {stream->device(), gemm};
  {
    std::lock_guard<std::mutex> lock(*mutex);
    const auto found = plans->find(key);
    if (found != plans->end()) return *found->second;
  }
  // Not under the lock, since choosing may wait for the device.
  auto plan = std::make_unique<Plan>(stream->blas(), gemm);
  TimedProduct timed(&plan->product, stream, operands);
  plan->candidate = ProcessGemmPlanner().Choose(PlaceOfDevice(stream->device()), gemm,
                                                MayWaitFor(*stream), &timed);
  std::lock_guard<std::mutex> lock(*mutex);
  return *plans->emplace(key, std::move(plan)).first->second;
}

void Run(const Stream& stream, const LinearGemm& linear) {
  const Gemm& gemm = linear.gemm;
  if (gemm.m == 0 || gemm.n == 0) return;
  const Plan& plan = PlanFor(stream.cuda(), gemm, linear.operands);
  CHECK(plan.product.Run(stream.cuda(), plan.candidate, linear.operands))
      << "cublasLtMatmul: " << gemm;
}

}  // namespace

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  Run(stream, ForwardGemm(x_TI, w_OI, bias_O, y_TO));
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  CHECK(pre_TO.is_contiguous() && y_TO.is_contiguous()) << pre_TO << " " << y_TO;
  // Not an epilogue of the product: cuBLASLt's takes a tanh of its own, of sums that it has not
  // rounded, so that activations computed again from pre_TO would not be the same bits.
  cuda::LinearForward(stream, x_TI, w_OI, bias_O, pre_TO);
  cuda::ActivationForward(stream, activation, pre_TO, y_TO);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  Run(stream, BackwardInputGemm(dy_TO, w_OI, dx_TI));
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI) {
  CHECK(pre_TI.is_contiguous() && dx_TI.is_contiguous()) << pre_TI << " " << dx_TI;
  cuda::LinearBackwardInput(stream, dy_TO, w_OI, dx_TI);
  cuda::ActivationBackward(stream, activation, dx_TI, pre_TI, dx_TI);
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  if (dy_TO.dim(0) == 0) return;
  Run(stream, BackwardWeightGemm(dy_TO, x_TI, dw_OI));
  if (!dbias_O.empty()) AddColumnSums(stream, dy_TO, dbias_O);
}

}  // namespace megatron::ops::cuda
