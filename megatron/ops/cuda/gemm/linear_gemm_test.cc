#include "megatron/ops/cuda/gemm/linear_gemm.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops::cuda {
namespace {

// The result of cuBLASLt, by its documentation. The tests only need to know where the GELU is
// applied, so here it is 2 x + 1, with a slope of 3 x.
float Gelu(float x) { return 2 * x + 1; }
float GeluSlope(float x) { return 3 * x; }

void Compute(const Gemm& gemm, const GemmOperands& at) {
  const auto *a = static_cast<const float*>(at.a), *b = static_cast<const float*>(at.b),
             *bias = static_cast<const float*>(at.bias);
  auto *const c = static_cast<float*>(at.c), *const aux = static_cast<float*>(at.aux),
              *const sums = static_cast<float*>(at.sums);
  if (sums != nullptr)
    std::fill_n(sums, gemm.epilogue == GemmEpilogue::kBiasGradient ? gemm.n : gemm.m, 0.0f);
  for (int64_t i = 0; i < gemm.m; ++i) {
    for (int64_t j = 0; j < gemm.n; ++j) {
      float sum = gemm.accumulate ? c[i + j * gemm.ldc] : 0;
      for (int64_t l = 0; l < gemm.k; ++l) {
        sum += (gemm.transpose_a ? a[l + i * gemm.lda] : a[i + l * gemm.lda]) *
               (gemm.transpose_b ? b[j + l * gemm.ldb] : b[l + j * gemm.ldb]);
      }
      sum += bias == nullptr ? 0 : bias[i];
      if (gemm.epilogue == GemmEpilogue::kGelu) {
        aux[i + j * gemm.m] = sum;
        sum = Gelu(sum);
      } else if (gemm.epilogue == GemmEpilogue::kGeluSlope) {
        sum *= GeluSlope(aux[i + j * gemm.m]);
        sums[i] += sum;
      }
      c[i + j * gemm.ldc] = sum;
    }
  }
  if (gemm.epilogue != GemmEpilogue::kBiasGradient) return;
  for (int64_t j = 0; j < gemm.n; ++j) {
    for (int64_t l = 0; l < gemm.k; ++l)
      sums[j] += gemm.transpose_b ? b[j + l * gemm.ldb] : b[l + j * gemm.ldb];
  }
}

double At(const Tensor& x, int64_t i, int64_t j) { return x.data<float>()[i * x.stride(0) + j]; }

class LinearGemmTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 3, kIn = 5, kOut = 4;

  static HostTensor Random(const Shape& shape, uint32_t seed) {
    return HostTensor::Normal(shape, DType::kFloat32, seed);
  }
  // The rows have a stride.
  const HostTensor wide_x_ = Random({kTokens, 3 * kIn}, 1), wide_y_ = Random({kTokens, 9}, 2),
                   w_ = Random({kOut, kIn}, 3), bias_ = Random({kOut}, 4);
  const Tensor x_ = wide_x_.tensor().Slice(1, kIn, 2 * kIn),
               y_ = wide_y_.tensor().Slice(1, 1, 1 + kOut), w = w_.tensor();
};

TEST_F(LinearGemmTest, ForwardIsTheProductWithTheTransposedWeightAndTheBias) {
  const LinearGemm forward = ForwardGemm(x_, w, bias_.tensor(), y_);
  Compute(forward.gemm, forward.operands);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t o = 0; o < kOut; ++o) {
      double sum = bias_.Get(o);
      for (int64_t i = 0; i < kIn; ++i) sum += At(x_, t, i) * At(w, o, i);
      EXPECT_NEAR(At(y_, t, o), sum, 1e-5);
    }
  }
}

TEST_F(LinearGemmTest, TheInputsGradientIsTheProductWithTheWeight) {
  const LinearGemm backward = BackwardInputGemm(y_, w, x_);
  Compute(backward.gemm, backward.operands);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t i = 0; i < kIn; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < kOut; ++o) sum += At(y_, t, o) * At(w, o, i);
      EXPECT_NEAR(At(x_, t, i), sum, 1e-5);
    }
  }
}

TEST_F(LinearGemmTest, TheWeightsGradientIsAddedToWhatIsThere) {
  const std::vector<double> before = w_.Values();
  const LinearGemm backward = BackwardWeightGemm(y_, x_, w);
  Compute(backward.gemm, backward.operands);
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      double sum = before[static_cast<size_t>(o * kIn + i)];
      for (int64_t t = 0; t < kTokens; ++t) sum += At(y_, t, o) * At(x_, t, i);
      EXPECT_NEAR(At(w, o, i), sum, 1e-5);
    }
  }
}

TEST_F(LinearGemmTest, AProductOfFloat8IsOneOfRowsWithRows) {
  const HostTensor a({3, 32}, DType::kUInt8), b({16, 32}, DType::kUInt8),
      c = Random({3, 16}, 1), bias = Random({16}, 2), of_a = Random({1}, 3), of_b = Random({1}, 4);
  const Float8Matrix a_MK = {Float8Format::kE5M2, a, of_a}, b_NK = {Float8Format::kE4M3, b, of_b};
  LinearGemm product = Float8Gemm(a_MK, b_NK, bias, c);
  EXPECT_EQ(product.gemm.in, DType::kUInt8);
  EXPECT_EQ(product.gemm.out, DType::kFloat32);
  // cuBLASLt's a is our b.
  EXPECT_EQ(product.gemm.a_format, Float8Format::kE4M3);
  EXPECT_EQ(product.gemm.b_format, Float8Format::kE5M2);
  EXPECT_EQ(product.operands.a_inverse_scale, of_b.tensor().raw());
  EXPECT_EQ(product.operands.b_inverse_scale, of_a.tensor().raw());
  // The same product in fp32, without codes.
  const HostTensor x = Random({3, 32}, 5), y = Random({16, 32}, 6);
  product.operands.a = y.tensor().raw();
  product.operands.b = x.tensor().raw();
  EXPECT_EQ(product.gemm.a_scaling, Float8Scaling::kTensor);
  Float8Matrix parts = b_NK;
  parts.scaling = Float8Scaling::kBlocks;
  EXPECT_EQ(Float8Gemm(a_MK, parts, bias, c).gemm.a_scaling, Float8Scaling::kBlocks);
  EXPECT_EQ(Float8Gemm(parts, a_MK, bias, c).gemm.b_scaling, Float8Scaling::kBlocks);
  const LinearGemm sum = Float8AddGemm(a_MK, b_NK, c);
  EXPECT_FALSE(product.gemm.accumulate);
  EXPECT_TRUE(sum.gemm.accumulate);
  EXPECT_EQ(sum.operands.bias, nullptr);
  Compute(product.gemm, product.operands);
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t n = 0; n < 16; ++n) {
      double want = bias.Get(n);
      for (int64_t k = 0; k < 32; ++k) want += At(x, m, k) * At(y, n, k);
      EXPECT_NEAR(At(c, m, n), want, 1e-5);
    }
  }
}

TEST_F(LinearGemmTest, TheBiassGradientIsTheSumOverTokens) {
  const HostTensor sums({kOut}, DType::kFloat32), dw({kOut, kIn}, DType::kFloat32);
  const LinearGemm both = BackwardWeightAndBiasGemm(y_, x_, dw, sums);
  EXPECT_TRUE(both.gemm.accumulate);
  EXPECT_FALSE(both.gemm == BackwardWeightGemm(y_, x_, dw).gemm);
  Compute(both.gemm, both.operands);
  for (int64_t o = 0; o < kOut; ++o) {
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) sum += At(y_, t, o);
    EXPECT_NEAR(sums.Get(o), sum, 1e-5);
  }
}

TEST_F(LinearGemmTest, GeluStandsBetweenWhatIsKeptAndTheOutput) {
  const HostTensor pre({kTokens, kOut}, DType::kFloat32), plain({kTokens, kOut}, DType::kFloat32);
  const LinearGemm forward = ForwardGeluGemm(x_, w, bias_.tensor(), pre, y_),
                   product = ForwardGemm(x_, w, bias_.tensor(), plain);
  Compute(forward.gemm, forward.operands);
  Compute(product.gemm, product.operands);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t o = 0; o < kOut; ++o) {
      EXPECT_EQ(pre.Get(t * kOut + o), plain.Get(t * kOut + o));
      EXPECT_EQ(At(y_, t, o), Gelu(static_cast<float>(plain.Get(t * kOut + o))));
    }
  }
}

TEST_F(LinearGemmTest, TheSlopeOfGeluIsTakenWhereItsInputStands) {
  const HostTensor pre = Random({kTokens, kIn}, 5), plain({kTokens, kIn}, DType::kFloat32),
                   sums({kIn}, DType::kFloat32);
  const LinearGemm backward = BackwardInputGeluGemm(y_, w, pre, x_, sums),
                   product = BackwardInputGemm(y_, w, plain);
  Compute(backward.gemm, backward.operands);
  Compute(product.gemm, product.operands);
  for (int64_t i = 0; i < kIn; ++i) {
    float sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t at = t * kIn + i;
      const float dx =
          static_cast<float>(plain.Get(at)) * GeluSlope(static_cast<float>(pre.Get(at)));
      EXPECT_EQ(At(x_, t, i), dx);
      sum += dx;
    }
    EXPECT_NEAR(sums.Get(i), sum, 1e-5);
  }
}

// Kernels may rely on it in every later call of this product.
TEST_F(LinearGemmTest, AlignmentIsThatOfTheWorstAddress) {
  alignas(16) char memory[256] = {};
  const auto at = [&](int64_t offset) { return Tensor(memory + offset, DType::kBFloat16, {1, 8}); };
  const auto bias_at = [&](int64_t offset) {
    return Tensor(memory + offset, DType::kBFloat16, {1});
  };
  const Tensor w = at(16), y(memory + 64, DType::kBFloat16, {1, 1});
  EXPECT_EQ(ForwardGemm(at(0), w, Tensor(), y).gemm.alignment, 16);
  EXPECT_EQ(ForwardGemm(at(0), w, Tensor(), y).gemm.bias_alignment, 0);
  EXPECT_EQ(ForwardGemm(at(40), w, Tensor(), y).gemm.alignment, 8);
  EXPECT_EQ(ForwardGemm(at(0), w, bias_at(98), y).gemm.alignment, 16);
  EXPECT_EQ(ForwardGemm(at(0), w, bias_at(98), y).gemm.bias_alignment, 2);
}

}  // namespace
}  // namespace megatron::ops::cuda
