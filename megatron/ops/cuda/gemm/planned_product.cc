#include "megatron/ops/cuda/gemm/planned_product.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/cuda/gemm/blas_product.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// A product with the kernel that was chosen for it, kept for the life of the program.
struct Plan {
  Plan(void* handle, const Gemm& gemm) : product(handle, gemm, BlasProduct::kCandidates) {}

  const BlasProduct product;
  std::atomic<int> candidate{0};
};

// Plans by device and product. Streams of several threads may use them at once.
Plan& PlanFor(CudaStream* stream, const Gemm& gemm, const GemmOperands& operands) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const plans = new std::map<std::pair<int, Gemm>, std::unique_ptr<Plan>>;
  const std::pair<int, Gemm> key = {stream->device(), gemm};
  {
    std::lock_guard<std::mutex> lock(*mutex);
    const auto found = plans->find(key);
    if (found != plans->end()) return *found->second;
  }
  // This does not hold the lock, since choosing may wait for the device.
  auto plan = std::make_unique<Plan>(stream->blas(), gemm);
  TimedProduct timed(&plan->product, stream, operands);
  plan->candidate = ProcessGemmPlanner().Choose(PlaceOfDevice(stream->device()), gemm,
                                                MayWaitFor(*stream), &timed);
  std::lock_guard<std::mutex> lock(*mutex);
  const auto [kept, is_new] = plans->emplace(key, std::move(plan));
  LOG_IF(WARNING, is_new && kept->second->candidate == GemmPlanner::kNoKernel)
      << "cuBLASLt has no kernel for a " << gemm;
  return *kept->second;
}

}  // namespace

void RunPlanned(const Stream& stream, const LinearGemm& linear) {
  CHECK(RunPlannedIfPossible(stream, linear))
      << "cuBLASLt has no kernel, or none that runs, for a " << linear.gemm;
}

bool RunPlannedIfPossible(const Stream& stream, const LinearGemm& linear) {
  const Gemm& gemm = linear.gemm;
  if (gemm.m == 0 || gemm.n == 0) return true;
  Plan& plan = PlanFor(stream.cuda(), gemm, linear.operands);
  const int candidate = plan.candidate;
  if (candidate == GemmPlanner::kNoKernel) return false;
  if (plan.product.Run(stream.cuda(), candidate, linear.operands)) return true;
  LOG_IF(WARNING, plan.candidate.exchange(GemmPlanner::kNoKernel) != GemmPlanner::kNoKernel)
      << "cublasLtMatmul refuses to run its kernel for a " << gemm;
  return false;
}

}  // namespace megatron::ops::cuda
