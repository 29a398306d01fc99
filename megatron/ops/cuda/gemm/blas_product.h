// A product in cuBLASLt: its description, its candidate kernels, running one and timing one.
#ifndef MEGATRON_OPS_CUDA_GEMM_BLAS_PRODUCT_H_
#define MEGATRON_OPS_CUDA_GEMM_BLAS_PRODUCT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "megatron/ops/cuda/gemm/gemm.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {

// Threads: any.
class BlasProduct {
 public:
  // Number of candidates, which is enough for most products. A plan names one of them.
  static constexpr int kCandidates = 32;

  // `handle` is a cublasLtHandle_t. There may be no kernels. No kernel splits the sum so that its
  // order or rounding depends on which block is first: all repeat bit for bit. Kernels may use
  // `workspace_bytes` of the stream's workspace.
  BlasProduct(void* handle, const Gemm& gemm, int most_candidates,
              int64_t workspace_bytes = kGemmWorkspaceBytes);
  ~BlasProduct();
  BlasProduct(const BlasProduct&) = delete;
  BlasProduct& operator=(const BlasProduct&) = delete;

  const Gemm& gemm() const { return gemm_; }
  absl::Span<const GemmKernel> kernels() const { return kernels_; }

  // Enqueues a run; returns false if cuBLASLt refuses it. It uses the stream's workspace.
  bool Run(CudaStream* stream, int candidate, const GemmOperands& operands) const;

 private:
  struct Descriptions;
  struct Search;

  const Gemm gemm_;
  const int64_t workspace_bytes_;
  std::unique_ptr<Descriptions> descriptions_;
  std::vector<GemmKernel> kernels_;
  mutable std::mutex turn_;  // a run points the description at its own vectors and scales
};

// The candidates, timed on real operands. Results go to separate memory; of the operands only
// additional outputs of an epilogue are written.
class TimedProduct : public GemmCandidates {
 public:
  // Also waits for the stream's previous work.
  TimedProduct(const BlasProduct* product, CudaStream* stream, const GemmOperands& operands);
  ~TimedProduct() override;

  absl::Span<const GemmKernel> kernels() const override { return product_->kernels(); }
  double Seconds(int candidate) override;

 private:
  // Nothing can be timed without memory for the results.
  bool Prepare();

  const BlasProduct* const product_;
  CudaStream* const stream_;
  GemmOperands operands_;
  void *begin_ = nullptr, *end_ = nullptr;  // cudaEvent_t
  void* scratch_ = nullptr;
  bool prepared_ = false;
};

// Returns whether the host may wait for the stream: not while its work is recorded into a graph.
bool MayWaitFor(const CudaStream& stream);

GemmPlace PlaceOfDevice(int device);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_BLAS_PRODUCT_H_
