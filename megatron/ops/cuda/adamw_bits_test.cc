// CUDA's AdamW against its definition (ops/adamw_element.h), bit for bit.
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/adamw_cases.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops {
namespace {

class AdamWBitsTest : public AgreementTest {
 protected:
  // Updates the case on the device. Returns its masters, where it has remainders.
  static HostTensor Update(const AdamWOptions& options, const OptimizerSegment& segment,
                           AdamWCase* on_host) {
    const Device device = {DeviceType::kCuda, 0};
    CudaStream cuda(0);
    std::vector<Buffer> buffers;
    std::vector<Tensor> at;
    for (const HostTensor* tensor : on_host->tensors()) {
      const Tensor& host = tensor->tensor();
      buffers.emplace_back(device, host.bytes(), "operand", nullptr);
      at.push_back(buffers.back().At(0, host.dtype(), host.shape()));
      CopyOnCuda(&cuda, host, at.back());
    }
    AdamWUpdate(Stream::Cuda(0, &cuda), options, {segment}, at[0], at[1], at[2], at[3], at[4]);
    for (size_t i = 0; i < at.size(); ++i)
      CopyOnCuda(&cuda, at[i], on_host->tensors()[i]->tensor());
    HostTensor masters(at[0].shape(), DType::kFloat32);
    if (at[3].dtype() != DType::kUInt16) return masters;
    JoinMasters(Stream::Cuda(0, &cuda), at[4], at[3], at[0]);
    CopyOnCuda(&cuda, at[0], masters.tensor());
    return masters;
  }

  static void ExpectTheDefinition(int64_t count, const AdamWDTypes& dtypes,
                                  const AdamWOptions& options, const OptimizerSegment& segment) {
    AdamWCase got = MakeAdamWCase(count, dtypes, 1), want = MakeAdamWCase(count, dtypes, 1);
    UpdateByElement(options, segment, &want);
    Update(options, segment, &got);
    for (size_t i = 0; i < got.tensors().size(); ++i) {
      SCOPED_TRACE(testing::Message() << "tensor " << i << " of grad, m, v, master, out");
      ExpectSameBits(*got.tensors()[i], *want.tensors()[i]);
    }
  }
};

TEST_F(AdamWBitsTest, TenMillionElementsAreTheDefinitions) {
  AdamWOptions options;
  options.beta2 = 0.95;
  options.step = 3;
  options.grad_scale = 0.7f;
  constexpr int64_t kCount = 10'000'000;
  ExpectTheDefinition(kCount, {DType::kBFloat16}, options, {0, kCount, 1e-3f, 0.1f});
}

// Elements that are updated alone and four at a time, and scalars of other steps.
TEST_F(AdamWBitsTest, AnyPartAndAnyStepAreTheDefinitions) {
  for (const DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t step : {1, 1'000'000}) {
      AdamWOptions options;
      options.step = step;
      options.grad_scale = step == 1 ? 1e-5f : 1;
      ExpectTheDefinition(60'013, {out_dtype}, options, {7, 60'011, 6e-4f, 0});
    }
  }
}

TEST_F(AdamWBitsTest, MomentsInBFloat16AreTheDefinitions) {
  AdamWOptions options;
  options.step = 7;
  for (const AdamWDTypes& dtypes : WithMomentsInBFloat16())
    ExpectTheDefinition(300'013, dtypes, options, {7, 300'011, 6e-4f, 0.1f});
}

TEST_F(AdamWBitsTest, RemaindersMakeTheDefinitionsMasters) {
  AdamWOptions options;
  options.step = 7;
  std::vector<AdamWDTypes> all_dtypes = {{DType::kBFloat16}};
  for (const auto& some : {WithMomentsInBFloat16(), WithMomentsInFloat8()})
    all_dtypes.insert(all_dtypes.end(), some.begin(), some.end());
  for (const AdamWDTypes& dtypes : all_dtypes) {
    const OptimizerSegment segment = {7, 60'011, 6e-4f, 0.1f};
    AdamWCase want = MakeAdamWCase(60'013, dtypes, 1),
              got = WithRemainders(MakeAdamWCase(60'013, dtypes, 1));
    UpdateByElement(options, segment, &want);
    const HostTensor masters = Update(options, segment, &got);
    ExpectSameMasters(got, want);
    ExpectSameBits(masters, want.master);
  }
}

TEST_F(AdamWBitsTest, MomentsInFloat8AreTheDefinitions) {
  AdamWOptions options;
  options.step = 7;
  for (const AdamWDTypes& dtypes : WithMomentsInFloat8())
    ExpectTheDefinition(300'013, dtypes, options, {7, 300'011, 6e-4f, 0.1f});
}

}  // namespace
}  // namespace megatron::ops
