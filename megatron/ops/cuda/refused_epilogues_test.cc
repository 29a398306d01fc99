// What products do for which cuBLASLt has no kernel that computes something beside: they are
// computed without, on the emulated device.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/cuda/gemm/emulated_product.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

class RefusedEpiloguesTest : public AgreementTest, public ::testing::WithParamInterface<DType> {
 protected:
  RefusedEpiloguesTest() {
    cuda::GemmPlanning planning;
    planning.fuse_gelu = cuda::FuseGelu::kBoth;
    planning.fuse_bias_gradients = true;
    cuda::ProcessGemmPlanner().Use(planning);
    cuda::RefuseEmulatedEpilogues(true);
  }
  ~RefusedEpiloguesTest() override {
    cuda::RefuseEmulatedEpilogues(false);
    cuda::ProcessGemmPlanner().Use({});
  }

  HostTensor Normal(const Shape& shape, uint32_t seed) const {
    return HostTensor::Normal(shape, GetParam(), seed);
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, RefusedEpiloguesTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(RefusedEpiloguesTest, ProductsAreComputedWithoutAndAgreeWithTheCpu) {
  constexpr int64_t kTokens = 33, kHidden = 24, kFfn = 40;
  HostTensor x = Normal({kTokens, kHidden}, 1), w = Normal({kFfn, kHidden}, 2),
             bias = Normal({kFfn}, 3), pre = Normal({kTokens, kFfn}, 4),
             act = Normal({kTokens, kFfn}, 5), dy = Normal({kTokens, kHidden}, 6),
             w2 = Normal({kHidden, kFfn}, 7), of_pre = Normal({kTokens, kFfn}, 8),
             dpre = Normal({kTokens, kFfn}, 9), dpre_alone = Normal({kTokens, kFfn}, 10),
             dbias = HostTensor::Normal({kFfn}, DType::kFloat32, 11),
             dw2 = HostTensor::Normal({kHidden, kFfn}, DType::kFloat32, 12),
             dbias2 = HostTensor::Normal({kHidden}, DType::kFloat32, 13);
  const int64_t before = cuda::RefusedEmulatedProducts();
  ExpectAgreement(
      {&x, &w, &bias, &pre, &act, &dy, &w2, &of_pre, &dpre, &dpre_alone, &dbias, &dw2, &dbias2},
      8 * OpTolerance(GetParam()), [](const Stream& stream, absl::Span<const Tensor> at) {
        constexpr Activation kGelu = Activation::kGeluTanh;
        LinearActivationForward(stream, kGelu, at[0], at[1], at[2], at[3], at[4]);
        LinearActivationBackwardInput(stream, kGelu, at[5], at[6], at[7], at[8], at[10]);
        LinearActivationBackwardInput(stream, kGelu, at[5], at[6], at[7], at[9], Tensor());
        LinearBackwardWeight(stream, at[5], at[4], at[11], at[12]);
      });
  // Each of the four, in both runs on the device.
  EXPECT_EQ(cuda::RefusedEmulatedProducts() - before, 8);
}

}  // namespace
}  // namespace megatron::ops
