#include "megatron/ops/cpu/row_kernels.h"

#include <type_traits>

#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/philox_vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// Number of columns whose multipliers are drawn at a time.
constexpr int64_t kChunk = 256;

// Calls body(first, count, scales) on pieces of the row; `scales` are the multipliers of dropout.
template <typename Body>
MEGATRON_INLINE void ForEachChunk(const RowDropout& dropout, int64_t columns, Body body) {
  alignas(64) float scales[kChunk];
  const DropoutRule rule = {dropout.key, dropout.threshold, dropout.scale};
  for (int64_t first = 0; first < columns; first += kChunk) {
    const int64_t count = columns - first < kChunk ? columns - first : kChunk;
    DropoutScales(rule, dropout.sample, dropout.position, dropout.first_column + first, count,
                  scales);
    body(first, count, scales);
  }
}

template <typename T>
void BiasDropoutAddRow(const RowDropout& dropout, const T* x, const T* bias, const T* residual,
                       T* out, int64_t columns) {
  const auto sum = [=](auto access, int64_t i) {
    return bias == nullptr ? access.load(x + i) : access.load(x + i) + access.load(bias + i);
  };
  const auto finish = [=](auto access, int64_t i, Vec value) {
    access.store(out + i, residual == nullptr ? value : access.load(residual + i) + value);
  };
  if (dropout.threshold == 0) {
    ForEachVec(columns, [=](auto access, int64_t i) { finish(access, i, sum(access, i)); });
    return;
  }
  ForEachChunk(dropout, columns, [=](int64_t first, int64_t count, const float* scales) {
    ForEachVec(count, [=](auto access, int64_t i) {
      finish(access, first + i, sum(access, first + i) * access.load(scales + i));
    });
  });
}

template <typename T>
void DropoutBackwardRow(const RowDropout& dropout, const T* dy, T* dx, float* sums,
                        int64_t columns) {
  const auto finish = [=](auto access, int64_t i, Vec value) {
    access.store(dx + i, value);
    if (sums != nullptr) access.store(sums + i, access.load(sums + i) + RoundTo(dx, value));
  };
  if (dropout.threshold == 0) {
    ForEachVec(columns, [=](auto access, int64_t i) { finish(access, i, access.load(dy + i)); });
    return;
  }
  ForEachChunk(dropout, columns, [=](int64_t first, int64_t count, const float* scales) {
    ForEachVec(count, [=](auto access, int64_t i) {
      finish(access, first + i, access.load(dy + first + i) * access.load(scales + i));
    });
  });
}

MEGATRON_INLINE Vec ZeroOutside(WholeVec, Vec a) { return a; }
MEGATRON_INLINE Vec ZeroOutside(PartOfVec part, Vec a) {
  return Select(FirstLanes(part.lanes), a, Zero());
}

// Returns the sum of term(access, i) over a row: four chains, then one tree.
template <typename Term>
MEGATRON_INLINE float SumOverRow(int64_t columns, Term term) {
  Vec sums[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= columns; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int chain = 0; chain < 4; ++chain) {
      sums[chain] = sums[chain] + term(WholeVec(), i + chain * kLanes);
    }
  }
  ForEachVec(columns - i, [&](auto access, int64_t j) {
    sums[0] = sums[0] + ZeroOutside(access, term(access, i + j));
  });
  return Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

MEGATRON_INLINE float ReciprocalSqrt(float x) {
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

template <typename T, bool kCentered>
void NormRow(const RowNorm& norm, const T* x, T* y, float* mean_out, float* rstd_out) {
  const T *gamma = static_cast<const T*>(norm.gamma), *beta = static_cast<const T*>(norm.beta);
  const float inverse_count = 1.0f / static_cast<float>(norm.columns);
  float mean = 0;
  if (kCentered) {
    mean = SumOverRow(norm.columns, [=](auto access, int64_t i) { return access.load(x + i); }) *
           inverse_count;
    *mean_out = mean;
  }
  const float variance = inverse_count * SumOverRow(norm.columns, [=](auto access, int64_t i) {
                           const Vec centered = access.load(x + i) - Set(mean);
                           return centered * centered;
                         });
  const float rstd = ReciprocalSqrt(variance + norm.epsilon);
  *rstd_out = rstd;
  const Vec offset = Set(norm.zero_centered_gamma ? 1.0f : 0.0f);
  ForEachVec(norm.columns, [=](auto access, int64_t i) {
    const Vec normalized = (access.load(x + i) - Set(mean)) * Set(rstd);
    const Vec shift = beta == nullptr ? Zero() : access.load(beta + i);
    access.store(y + i, Fma(normalized, access.load(gamma + i) + offset, shift));
  });
}

// dx = rstd (g - mean(g) - n mean(g n)) with n = (x - mean) rstd and g = dy * scale; RMSNorm lacks
// the middle term.
template <typename T, bool kCentered>
void NormBackwardRow(const RowNorm& norm, const RowNormBackward& row) {
  const T *dy = static_cast<const T*>(row.dy), *x = static_cast<const T*>(row.x);
  const T* gamma = static_cast<const T*>(norm.gamma);
  const T* dresidual = static_cast<const T*>(row.dresidual);
  T* dx = static_cast<T*>(row.dx);
  float *const dgamma = row.dgamma, *const dbeta = row.dbeta;
  const float inverse_count = 1.0f / static_cast<float>(norm.columns);
  const Vec offset = Set(norm.zero_centered_gamma ? 1.0f : 0.0f);
  const Vec mean = Set(kCentered ? row.mean : 0.0f), rstd = Set(row.rstd);

  const float mean_gn = inverse_count * SumOverRow(norm.columns, [=](auto access, int64_t i) {
                          const Vec d = access.load(dy + i), n = (access.load(x + i) - mean) * rstd;
                          if (dgamma != nullptr)
                            access.store(dgamma + i, Fma(d, n, access.load(dgamma + i)));
                          if (dbeta != nullptr) access.store(dbeta + i, d + access.load(dbeta + i));
                          return d * (access.load(gamma + i) + offset) * n;
                        });
  float mean_g = 0;
  if (kCentered) {
    mean_g = inverse_count * SumOverRow(norm.columns, [=](auto access, int64_t i) {
               return access.load(dy + i) * (access.load(gamma + i) + offset);
             });
  }
  ForEachVec(norm.columns, [=](auto access, int64_t i) {
    const Vec g = access.load(dy + i) * (access.load(gamma + i) + offset);
    const Vec n = (access.load(x + i) - mean) * rstd;
    const Vec d = NegatedFma(n, Set(mean_gn), g - Set(mean_g)) * rstd;
    access.store(dx + i, dresidual == nullptr ? d : access.load(dresidual + i) + d);
  });
}

void BiasDropoutAdd(DType dtype, const RowDropout& dropout, const void* x, const void* bias,
                    const void* residual, void* out, int64_t columns) {
  WithType(dtype, [&](auto* type) {
    BiasDropoutAddRow(dropout, As(type, x), As(type, bias), As(type, residual), As(type, out),
                      columns);
  });
}

void DropoutBackward(DType dtype, const RowDropout& dropout, const void* dy, void* dx, float* sums,
                     int64_t columns) {
  WithType(dtype, [&](auto* type) {
    DropoutBackwardRow(dropout, As(type, dy), As(type, dx), sums, columns);
  });
}

void Norm(const RowNorm& norm, const void* x, void* y, float* mean, float* rstd) {
  WithType(norm.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (norm.centered) {
      NormRow<T, true>(norm, As(type, x), As(type, y), mean, rstd);
    } else {
      NormRow<T, false>(norm, As(type, x), As(type, y), mean, rstd);
    }
  });
}

void NormBackward(const RowNorm& norm, const RowNormBackward& row) {
  WithType(norm.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (norm.centered) {
      NormBackwardRow<T, true>(norm, row);
    } else {
      NormBackwardRow<T, false>(norm, row);
    }
  });
}

void AddRows(const float* rows, int64_t num_rows, int64_t stride, float* out, int64_t count) {
  ForEachVec(count, [=](auto access, int64_t i) {
    Vec sum = access.load(rows + i);
    for (int64_t row = 1; row < num_rows; ++row) sum = sum + access.load(rows + row * stride + i);
    access.store(out + i, access.load(out + i) + sum);
  });
}

}  // namespace

const RowKernels kRowKernels = {BiasDropoutAdd, DropoutBackward, Norm, NormBackward, AddRows};

}  // namespace megatron::ops::MEGATRON_ISA
