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

  // Skips where there is no GPU; with MEGATRON_REQUIRE_GPU set, fails.
  void SetUp() override;

  // Runs the op on the CPU over `operands`, and twice on the GPU over copies of what they were.
  // Every operand must agree afterwards, inputs that nobody should have changed included: within
  // `tolerance`, relative to its largest element, and bit for bit between the runs on the GPU.
  // Bytes around the copies must not have changed.
  void ExpectAgreement(absl::Span<HostTensor* const> operands, double tolerance, Op op);

 private:
  ThreadPool pool_{1};
  std::unique_ptr<CudaStream> cuda_;
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUDA_AGREEMENT_H_
