// Parts that the kernels of LayerNorm and RMSNorm share. A row belongs to a team of threads; each
// thread asks for the same vectors of N neighbouring elements again and again: member, member +
// team, ...
#ifndef MEGATRON_OPS_CUDA_LAYER_NORM_CUH_
#define MEGATRON_OPS_CUDA_LAYER_NORM_CUH_

#include <cstdint>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/layer_norm.h"

namespace megatron::ops::cuda {

// The widest row that a warp normalizes, so that it waits for no other warp; a block normalizes
// wider rows.
constexpr int64_t kBytesOfWarp = 4096;

__device__ inline int64_t Offset(const RowLayout& layout, int64_t row) {
  // The usual case avoids the division: dividing 64 bits takes longer than the rest of the work on
  // an element.
  if (layout.sizes[0] * layout.sizes[1] == 1) return row * layout.strides[2];
  const int64_t last = row % layout.sizes[2];
  const int64_t rest = row / layout.sizes[2];
  return (rest / layout.sizes[1]) * layout.strides[0] +
         (rest % layout.sizes[1]) * layout.strides[1] + last * layout.strides[2];
}

__device__ inline float NormScale(float gamma, bool zero_centered) {
  return zero_centered ? 1 + gamma : gamma;
}

// The row of a team of kTeam threads.
template <int kTeam>
__device__ int64_t TeamRow() {
  return static_cast<int64_t>(blockIdx.x) * (kThreads / kTeam) + threadIdx.x / kTeam;
}

// The sum over a warp or over the block.
template <int kTeam>
__device__ float TeamSum(float x, float* partial) {
  static_assert(kTeam == kWarp || kTeam == kThreads, "a warp or a block");
  return kTeam == kWarp ? WarpSum(x) : BlockSum(x, partial);
}

// Normalizes the row whose i-th vector is read(i). Each vector is read three times by design:
// nearby memory holds the row for the second and third time, and no width needs its own kernel.
// `partial` is shared memory of kWarps floats; a team of one warp does not use it.
template <typename T, int N, int kTeam, typename Read>
__device__ void NormalizeRow(const LayerNormForwardArgs& args, int64_t row, float* partial,
                             Read read) {
  const int member = threadIdx.x % kTeam;
  const int64_t vectors = args.shape.hidden / N;
  const float width = static_cast<float>(args.shape.hidden);

  float mean = 0;
  if (!args.shape.rms) {
    float sum = 0;
    for (int64_t i = member; i < vectors; i += kTeam) {
      const Vector<T, N> values = read(i);
      for (int j = 0; j < N; ++j) sum += ToFloat(values.values[j]);
    }
    mean = TeamSum<kTeam>(sum, partial) / width;
  }
  float squares = 0;
  for (int64_t i = member; i < vectors; i += kTeam) {
    const Vector<T, N> values = read(i);
    for (int j = 0; j < N; ++j) {
      const float centered = ToFloat(values.values[j]) - mean;
      squares = fmaf(centered, centered, squares);
    }
  }
  const float rstd = rsqrtf(TeamSum<kTeam>(squares, partial) / width + args.shape.epsilon);
  if (member == 0) {
    if (!args.shape.rms) args.mean_T[row] = mean;
    args.rstd_T[row] = rstd;
  }

  const T* gamma = static_cast<const T*>(args.gamma_H);
  const T* beta = static_cast<const T*>(args.beta_H);
  T* y = static_cast<T*>(args.y_TH) + Offset(args.y_rows, row);
  for (int64_t i = member; i < vectors; i += kTeam) {
    const Vector<T, N> values = read(i);
    const auto gammas = Load<T, N>(gamma, i);
    Vector<T, N> betas = {};
    if (beta != nullptr) betas = Load<T, N>(beta, i);
    Vector<T, N> out;
    for (int j = 0; j < N; ++j) {
      const float normalized = (ToFloat(values.values[j]) - mean) * rstd;
      const float scale = NormScale(ToFloat(gammas.values[j]), args.shape.zero_centered_gamma);
      out.values[j] = FromFloat<T>(fmaf(normalized, scale, ToFloat(betas.values[j])));
    }
    Store<T, N>(y, i, out);
  }
}

inline bool IsAligned(const void* pointer, const RowLayout& layout, int64_t element_bytes) {
  int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  if (pointer == nullptr) return true;
  for (int64_t stride : layout.strides) bits |= stride * element_bytes;
  return bits % kVectorBytes == 0;
}

template <typename T>
bool TakesVectors(const LayerNormForwardArgs& args) {
  return args.shape.hidden % kVector<T> == 0 && IsAligned(args.x_TH, args.x_rows, sizeof(T)) &&
         IsAligned(args.y_TH, args.y_rows, sizeof(T)) && IsAligned({args.gamma_H, args.beta_H});
}

template <typename T>
bool TakesWarp(int64_t hidden) {
  return hidden * static_cast<int64_t>(sizeof(T)) <= kBytesOfWarp;
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_LAYER_NORM_CUH_
