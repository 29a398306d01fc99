#include "megatron/testing/sum_kernel.h"

#include <immintrin.h>

namespace megatron::testing::MEGATRON_ISA {

float Sum(const float* x, int n) {
  float sum = 0;
  int i = 0;
#ifdef MEGATRON_ISA_AVX512
  __m512 sums = _mm512_setzero_ps();
  for (; i + 16 <= n; i += 16) sums = _mm512_add_ps(sums, _mm512_loadu_ps(x + i));
  sum = _mm512_reduce_add_ps(sums);
#else
  __m256 sums = _mm256_setzero_ps();
  for (; i + 8 <= n; i += 8) sums = _mm256_add_ps(sums, _mm256_loadu_ps(x + i));
  float lanes[8];
  _mm256_storeu_ps(lanes, sums);
  for (float lane : lanes) sum += lane;
#endif
  for (; i < n; ++i) sum += x[i];
  return sum;
}

}  // namespace megatron::testing::MEGATRON_ISA
