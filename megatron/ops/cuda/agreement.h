// Tests of CUDA kernels against the CPU's: the same op, the same operands, the same results.
//
//   TEST_F(AgreementTest, AddsOnTheGpuAsOnTheCpu) {
//     HostTensor x = HostTensor::Normal({3, 5}, DType::kBFloat16, 1), y = ...;
//     ExpectAgreement({&x, &y}, 0, [](const Stream& stream, absl::Span<const Tensor> at) {
//       Add(stream, at[0], at[1]);
//     });
//   }
#ifndef MEGATRON_OPS_CUDA_AGREEMENT_H_
#define MEGATRON_OPS_CUDA_AGREEMENT_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops {

class AgreementTest : public ::testing::Test {
 protected:
  using Op = absl::FunctionRef<void(const Stream&, absl::Span<const Tensor>)>;

  // Skips the test if there is no GPU; fails it if MEGATRON_REQUIRE_GPU is set.
  void SetUp() override;

  // Runs the op on the CPU over `operands`, and twice on the GPU over copies of their original
  // contents. Afterwards every operand must agree, including inputs that should not change: within
  // `tolerance`, relative to its largest element, between CPU and GPU, and bit for bit between the
  // two runs on the GPU. Bytes around the copies must not have changed.
  void ExpectAgreement(absl::Span<HostTensor* const> operands, double tolerance, Op op);

 private:
  ThreadPool pool_{1};
  std::unique_ptr<CudaStream> cuda_;
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUDA_AGREEMENT_H_
