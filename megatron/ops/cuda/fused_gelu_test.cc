// The products that compute the GELU beside them, against the CPU's.
#include <string>

#include "gtest/gtest.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

using At = absl::Span<const Tensor>;
using cuda::FuseGelu;

class FusedGeluTest : public AgreementTest, public ::testing::WithParamInterface<DType> {
 protected:
  ~FusedGeluTest() override { Fuse(FuseGelu::kNone); }

  static void Fuse(FuseGelu fuse) {
    cuda::GemmPlanning planning;
    planning.fuse_gelu = fuse;
    cuda::ProcessGemmPlanner().Use(planning);
  }

  HostTensor Normal(const Shape& shape, uint32_t seed) const {
    return HostTensor::Normal(shape, GetParam(), seed);
  }

  // An MLP's products beside its activation, forward and backward.
  void ExpectAgreementOfMlp(Activation activation, int64_t tokens, int64_t hidden, int64_t ffn) {
    HostTensor x = Normal({tokens, hidden}, 1), w = Normal({ffn, hidden}, 2),
               bias = Normal({ffn}, 3), pre = Normal({tokens, ffn}, 4),
               act = Normal({tokens, ffn}, 5), dy = Normal({tokens, hidden}, 6),
               w2 = Normal({hidden, ffn}, 7), of_pre = Normal({tokens, ffn}, 8),
               dpre = Normal({tokens, ffn}, 9), dpre_alone = Normal({tokens, ffn}, 10),
               dbias = HostTensor::Normal({ffn}, DType::kFloat32, 11);
    ExpectAgreement(
        {&x, &w, &bias, &pre, &act, &dy, &w2, &of_pre, &dpre, &dpre_alone, &dbias},
        8 * OpTolerance(GetParam()), [&](const Stream& stream, At at) {
          LinearActivationForward(stream, activation, at[0], at[1], at[2], at[3], at[4]);
          LinearActivationBackwardInput(stream, activation, at[5], at[6], at[7], at[8], at[10]);
          LinearActivationBackwardInput(stream, activation, at[5], at[6], at[7], at[9], Tensor());
        });
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, FusedGeluTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(FusedGeluTest, ProductsWithGeluAgreeWithTheCpu) {
  for (const FuseGelu fuse : {FuseGelu::kBackward, FuseGelu::kBoth}) {
    Fuse(fuse);
    ExpectAgreementOfMlp(Activation::kGeluTanh, 64, 128, 256);
    ExpectAgreementOfMlp(Activation::kGeluTanh, 33, 24, 40);
    ExpectAgreementOfMlp(Activation::kGeluTanh, 1, 64, 8);
  }
}

TEST_P(FusedGeluTest, WhatCuBlasLtDoesNotTakeAgreesToo) {
  Fuse(FuseGelu::kBoth);
  ExpectAgreementOfMlp(Activation::kGeluTanh, 17, 13, 7);
  ExpectAgreementOfMlp(Activation::kGeluErf, 33, 24, 40);
  ExpectAgreementOfMlp(Activation::kGeluTanh, 0, 24, 40);
}

}  // namespace
}  // namespace megatron::ops
