// The CPU's kernels against the definition of AdamW (adamw_element.h), bit for bit.
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/adamw_cases.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops {
namespace {

void ExpectTheDefinition(int64_t count, DType out_dtype, const AdamWOptions& options,
                         const OptimizerSegment& segment) {
  ThreadPool pool(2);
  AdamWCase got = MakeAdamWCase(count, out_dtype, 1), want = MakeAdamWCase(count, out_dtype, 1);
  UpdateByElement(options, segment, &want);
  AdamWUpdate(Stream::Cpu(&pool), options, {segment}, got.grad, got.m, got.v, got.master, got.out);
  for (size_t i = 0; i < got.tensors().size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i << " of grad, m, v, master, out");
    ExpectSameBits(*got.tensors()[i], *want.tensors()[i]);
  }
}

TEST(AdamWBitsTest, TenMillionElementsAreTheDefinitions) {
  AdamWOptions options;
  options.beta2 = 0.95;
  options.step = 3;
  options.grad_scale = 0.7f;
  constexpr int64_t kCount = 10'000'000;
  ExpectTheDefinition(kCount, DType::kBFloat16, options, {0, kCount, 1e-3f, 0.1f});
}

// Vectors that are cut at either end, and scalars of other steps.
TEST(AdamWBitsTest, AnyPartAndAnyStepAreTheDefinitions) {
  for (const DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t step : {1, 10, 1'000'000}) {
      for (const int64_t begin : {0, 1, 7, 33}) {
        AdamWOptions options;
        options.step = step;
        options.grad_scale = step == 10 ? 1e-5f : 1;
        ExpectTheDefinition(60'013, out_dtype, options, {begin, 60'013 - begin / 2, 6e-4f, 0});
      }
    }
  }
}

}  // namespace
}  // namespace megatron::ops
