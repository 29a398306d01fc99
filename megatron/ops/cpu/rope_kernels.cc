#include "megatron/ops/cpu/rope_kernels.h"

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// The factors of one token: x' = cos * x + sin * partner(x) for each of the 2 * pairs rotated
// elements.
struct Factors {
  float *cos, *sin;
};

Vec SwapNeighbours(Vec a) {
#if defined(MEGATRON_ISA_AVX512)
  return {_mm512_permute_ps(a.v, 0xb1)};
#else
  return {_mm256_permute_ps(a.v, 0xb1)};
#endif
}

Factors Expand(const RopeRotation& rotation, int64_t t, float* scratch) {
  const Factors factors = {scratch, scratch + 2 * rotation.pairs};
  const int64_t row = rotation.position[t] * rotation.pairs;
  for (int64_t p = 0; p < rotation.pairs; ++p) {
    const int64_t first = rotation.interleaved ? 2 * p : p;
    const int64_t second = rotation.interleaved ? 2 * p + 1 : p + rotation.pairs;
    const float sin = rotation.inverse ? -rotation.sin[row + p] : rotation.sin[row + p];
    factors.cos[first] = factors.cos[second] = rotation.cos[row + p];
    factors.sin[first] = -sin;
    factors.sin[second] = sin;
  }
  return factors;
}

MEGATRON_INLINE Vec Rotate(Vec x, Vec partner, Vec cos, Vec sin) { return x * cos + partner * sin; }

template <typename T>
void RotateInterleaved(const Factors& factors, int64_t pairs, T* x) {
  for (int64_t d = 0; d < 2 * pairs; d += kLanes) {
    const int n = 2 * pairs - d < kLanes ? static_cast<int>(2 * pairs - d) : kLanes;
    const Vec v = LoadPartial(x + d, n);
    StorePartial(x + d,
                 Rotate(v, SwapNeighbours(v), LoadPartial(factors.cos + d, n),
                        LoadPartial(factors.sin + d, n)),
                 n);
  }
}

template <typename T>
void RotateHalves(const Factors& factors, int64_t pairs, T* x) {
  for (int64_t p = 0; p < pairs; p += kLanes) {
    const int n = pairs - p < kLanes ? static_cast<int>(pairs - p) : kLanes;
    const Vec first = LoadPartial(x + p, n), second = LoadPartial(x + pairs + p, n);
    const Vec cos = LoadPartial(factors.cos + p, n);
    StorePartial(x + p, Rotate(first, second, cos, LoadPartial(factors.sin + p, n)), n);
    StorePartial(x + pairs + p, Rotate(second, first, cos, LoadPartial(factors.sin + pairs + p, n)),
                 n);
  }
}

template <typename T>
void Tokens(const RopeRotation& rotation, int64_t begin, int64_t end, float* scratch) {
  for (int64_t t = begin; t < end; ++t) {
    const Factors factors = Expand(rotation, t, scratch);
    for (int64_t outer = 0; outer < rotation.outer_heads; ++outer) {
      for (int64_t inner = 0; inner < rotation.inner_heads; ++inner) {
        T* x = static_cast<T*>(rotation.x) + t * rotation.token_stride +
               outer * rotation.outer_stride + inner * rotation.inner_stride;
        if (rotation.interleaved) {
          RotateInterleaved(factors, rotation.pairs, x);
        } else {
          RotateHalves(factors, rotation.pairs, x);
        }
      }
    }
  }
}

}  // namespace

void RopeTokens(const RopeRotation& rotation, int64_t begin, int64_t end, float* scratch) {
  switch (rotation.dtype) {
    case DType::kBFloat16:
      return Tokens<BFloat16>(rotation, begin, end, scratch);
    case DType::kFloat16:
      return Tokens<Float16>(rotation, begin, end, scratch);
    default:
      return Tokens<float>(rotation, begin, end, scratch);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA
