#include "megatron/ops/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/philox.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {
namespace {

constexpr int64_t kM = 37, kN = 71;

float ToFloatValue(float x) { return x; }
float ToFloatValue(BFloat16 x) { return ToFloat(x); }

float FromFloat(float x, float*) { return x; }
BFloat16 FromFloat(float x, BFloat16*) { return ToBFloat16(x); }

template <typename T>
std::vector<T> Random(int64_t count, uint32_t seed) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const PhiloxBlock words = Philox({seed, 0}, {{static_cast<uint32_t>(i), 0, 0, 0}});
    values[i] = FromFloat(static_cast<float>(static_cast<int32_t>(words.word[0])) * 0x1p-31f,
                          static_cast<T*>(nullptr));
  }
  return values;
}

// One element of a product: the numbers that are multiplied and added, as gemm.h orders them.
using Factor = std::function<float(int64_t k)>;

float SumOfBlock(Bf16Products products, int64_t begin, int64_t end, const Factor& a,
                 const Factor& b) {
  float sum = 0;
  if (products == Bf16Products::kWidened) {
    for (int64_t k = begin; k < end; ++k) sum = std::fma(a(k), b(k), sum);
  } else if (products == Bf16Products::kAvx512Bf16) {
    for (int64_t k = begin; k < end; k += 2) {
      if (k + 1 < end) sum = std::fma(a(k + 1), b(k + 1), sum);
      sum = std::fma(a(k), b(k), sum);
    }
  } else {
    for (int64_t k = begin; k < end; k += 32) {
      float even = 0, odd = 0;
      for (int64_t i = k; i < std::min(k + 32, end); i += 2) {
        even = std::fma(a(i), b(i), even);
        if (i + 1 < end) odd = std::fma(a(i + 1), b(i + 1), odd);
      }
      sum += even + odd;
    }
  }
  return sum;
}

float SumInOrder(Bf16Products products, int64_t depth, const Factor& a, const Factor& b) {
  const int64_t block = products == Bf16Products::kWidened ? 384 : 768;
  float sum = 0;
  for (int64_t k = 0; k < depth; k += block) {
    const float of_block = SumOfBlock(products, k, std::min(k + block, depth), a, b);
    sum = k == 0 ? of_block : sum + of_block;
  }
  return sum;
}

// The first rows of A [kM, depth] times B [depth, kN]; each is contiguous along K or along its
// other dim.
template <typename T>
std::vector<float> Product(int threads, int64_t rows, int64_t depth, bool a_along_k, bool b_along_k,
                           const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<float> c(kM * kN);
  Gemm gemm;
  gemm.m = rows;
  gemm.n = kN;
  gemm.k = depth;
  gemm.dtype = DTypeOf<T>::value;
  gemm.a = {a.data(), a_along_k ? depth : 1, a_along_k ? 1 : kM};
  gemm.b = {b.data(), b_along_k ? 1 : kN, b_along_k ? depth : 1};
  gemm.epilogue = GemmEpilogue::kAccumulate;
  gemm.c = {c.data(), kN};
  ThreadPool pool(threads);
  RunGemm(&pool, gemm);
  return c;
}

template <typename T>
void ExpectSumsInOrder(Bf16Products products, int64_t rows, int64_t depth) {
  for (const bool a_along_k : {true, false}) {
    for (const bool b_along_k : {true, false}) {
      SCOPED_TRACE(::testing::Message()
                   << rows << " " << depth << " " << a_along_k << " " << b_along_k);
      const std::vector<T> a = Random<T>(kM * depth, 1), b = Random<T>(kN * depth, 2);
      const std::vector<float> c = Product(2, rows, depth, a_along_k, b_along_k, a, b);
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = 0; n < kN; ++n) {
          const auto at_a = [&](int64_t k) {
            return ToFloatValue(a[a_along_k ? m * depth + k : k * kM + m]);
          };
          const auto at_b = [&](int64_t k) {
            return ToFloatValue(b[b_along_k ? n * depth + k : k * kN + n]);
          };
          ASSERT_EQ(c[m * kN + n], SumInOrder(products, depth, at_a, at_b)) << m << " " << n;
        }
      }
    }
  }
}

// Depths within, at and just above blocks, pairs and the 32 of AMX.
constexpr int64_t kDepths[] = {1, 2, 31, 65, 384, 768, 801, 1537};
// Few rows have a kernel of their own, up to 16.
constexpr int64_t kRows[] = {1, 5, 13, 16, 17, 32, kM};

TEST(GemmTest, Fp32SumsHaveTheDocumentedOrder) {
  for (const int64_t rows : kRows) {
    for (const int64_t depth : kDepths)
      ExpectSumsInOrder<float>(Bf16Products::kWidened, rows, depth);
  }
}

TEST(GemmTest, Bf16SumsHaveTheDocumentedOrder) {
  for (const int64_t rows : kRows) {
    for (const int64_t depth : kDepths)
      ExpectSumsInOrder<BFloat16>(ActiveBf16Products(), rows, depth);
  }
}

TEST(GemmTest, TheProcessorsBf16ProductsTakeDenormalsForZero) {
  if (ActiveBf16Products() == Bf16Products::kWidened) {
    GTEST_SKIP() << "bf16 products are widened to fp32, which keeps denormals";
  }
  const std::vector<BFloat16> tiny(kM, ToBFloat16(0x1p-130f)), large(kN, ToBFloat16(0x1p+60f));
  EXPECT_EQ(Product(1, kM, 1, true, true, tiny, large), std::vector<float>(kM * kN, 0.0f));
  const std::vector<BFloat16> a(kM, ToBFloat16(0x1p-70f)), b(kN, ToBFloat16(0x1p-70f));
  EXPECT_EQ(Product(1, kM, 1, true, true, a, b), std::vector<float>(kM * kN, 0.0f));
}

}  // namespace
}  // namespace megatron::ops
