// The rule of dropout.h on the device: which elements of a row are kept.
#ifndef MEGATRON_OPS_CUDA_DROPOUT_CUH_
#define MEGATRON_OPS_CUDA_DROPOUT_CUH_

#include <cstdint>
#include <initializer_list>

#include "megatron/base/philox.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/dropout.h"

namespace megatron::ops::cuda {

// A threshold of 0 keeps everything and reads nothing.
struct DropoutArgs {
  PhiloxKey key;
  uint32_t threshold = 0;
  float scale = 1;
  const int64_t* sample_T = nullptr;
  const int32_t* position_T = nullptr;
  int64_t first_column = 0;

  // The words of columns [4 group, 4 group + 4) of the global row.
  __device__ PhiloxBlock Words(int64_t token, int64_t group) const {
    const auto sample = static_cast<uint64_t>(sample_T[token]);
    return Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                         static_cast<uint32_t>(position_T[token]), static_cast<uint32_t>(group)}});
  }

  // Writes the multipliers of columns [first, first + N) of this rank. If N is a multiple of four,
  // so is the global index of `first`, and four columns share one draw.
  template <int N>
  __device__ void Multipliers(int64_t token, int64_t first, float (&multipliers)[N]) const {
    static_assert(N == 1 || N % 4 == 0, "a part of a group");
    if (threshold == 0) {
      for (float& multiplier : multipliers) multiplier = 1;
      return;
    }
    const int64_t column = first_column + first;
    if constexpr (N == 1) {
      const PhiloxBlock words = Words(token, column / 4);
      multipliers[0] = words.word[column % 4] >= threshold ? scale : 0.0f;
    } else {
      for (int group = 0; group < N / 4; ++group) {
        const PhiloxBlock words = Words(token, column / 4 + group);
        for (int j = 0; j < 4; ++j)
          multipliers[4 * group + j] = words.word[j] >= threshold ? scale : 0.0f;
      }
    }
  }
};

inline DropoutArgs MakeDropoutArgs(const Dropout& dropout) {
  DropoutArgs args;
  args.first_column = dropout.first_column;
  if (dropout.probability == 0) return args;
  args.key = dropout.key;
  args.threshold = static_cast<uint32_t>(static_cast<double>(dropout.probability) * 4294967296.0);
  args.scale = 1.0f / (1.0f - dropout.probability);
  args.sample_T = dropout.sample_T.data<int64_t>();
  args.position_T = dropout.position_T.data<int32_t>();
  return args;
}

// residual + dropout(x + bias) of contiguous rows; bias and residual may be null.
template <typename T>
struct ResidualSum {
  DropoutArgs dropout;
  int64_t tokens, columns;
  const T *x_TH, *bias_H, *residual_TH;

  // Returns whether rows that are also written to `outs` can be processed in vectors of kVector<T>.
  bool TakesVectors(std::initializer_list<const void*> outs) const {
    return columns % kVector<T> == 0 && dropout.first_column % 4 == 0 &&
           IsAligned({x_TH, bias_H, residual_TH}) && IsAligned(outs);
  }

  // Computes columns [N i, N i + N) of a token. Values are rounded after the product and after the
  // sum, as on the CPU: every kernel that calls this gets the same bits.
  template <int N>
  __device__ Vector<T, N> At(int64_t token, int64_t i) const {
    auto values = Load<T, N>(x_TH + token * columns, i);
    Vector<T, N> biases = {}, residuals = {};
    if (bias_H != nullptr) biases = Load<T, N>(bias_H, i);
    if (residual_TH != nullptr) residuals = Load<T, N>(residual_TH + token * columns, i);
    float multipliers[N];
    dropout.Multipliers(token, i * N, multipliers);
    for (int j = 0; j < N; ++j) {
      const float branch = ToFloat(values.values[j]) + ToFloat(biases.values[j]);
      values.values[j] =
          FromFloat<T>(__fadd_rn(__fmul_rn(branch, multipliers[j]), ToFloat(residuals.values[j])));
    }
    return values;
  }
};

template <typename T>
ResidualSum<T> MakeResidualSum(T* type, const Dropout& dropout, const Tensor& x_TH,
                               const Tensor& bias_H, const Tensor& residual_TH) {
  return {MakeDropoutArgs(dropout), x_TH.dim(0),      x_TH.dim(1),
          As(type, x_TH),           As(type, bias_H), As(type, residual_TH)};
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_DROPOUT_CUH_
