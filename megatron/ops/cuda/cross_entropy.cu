#include <algorithm>

#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron::ops::cuda {
namespace {

constexpr float kLowest = -3e38f;

struct LossRows {
  int64_t tokens, columns;
  int64_t counted;  // number of columns without padding
  int64_t first_column;
  const int32_t* labels_T;
  float softcap = 0;  // 0: none

  // The label's column on this rank, or -1.
  __device__ int64_t LabelColumn(int64_t token) const {
    const int64_t column = labels_T[token] - first_column;
    return column >= 0 && column < counted ? column : -1;
  }
};

// Calls body(x, column) for this thread's columns in [0, counted), whole vectors of N first.
template <typename T, int N, typename Body>
__device__ void ForEachLogit(const T* row, int64_t counted, Body body) {
  const int64_t vectors = counted / N;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto values = Load<T, N>(row, i);
    for (int j = 0; j < N; ++j) body(ToFloat(values.values[j]));
  }
  for (int64_t i = vectors * N + threadIdx.x; i < counted; i += kThreads) body(ToFloat(row[i]));
}

// Each block has one row, which it reads once: each thread keeps a maximum and the sum for that
// maximum.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    Statistics(LossRows rows, const T* logits, float* max_T, float* sum_T, float* target_T) {
  __shared__ float partial[kWarps];
  const int64_t token = blockIdx.x;
  const T* const row = logits + token * rows.columns;
  float max = -INFINITY, sum = 0;
  ForEachLogit<T, N>(row, rows.counted, [&](float x) {
    if (x > max) {
      sum *= Exp<T>(max - x);
      max = x;
    }
    // Minus infinity must not be subtracted from itself.
    sum += Exp<T>(x - fmaxf(max, kLowest));
  });
  const float row_max = BlockMax(max, partial);
  const float rescaled = sum * Exp<T>(max - fmaxf(row_max, kLowest));
  const float row_sum = BlockSum(max == -INFINITY ? 0.0f : rescaled, partial);
  if (threadIdx.x != 0) return;
  max_T[token] = row_max;
  sum_T[token] = row_sum;
  const int64_t label = rows.LabelColumn(token);
  target_T[token] = label < 0 ? 0 : ToFloat(row[label]);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) Gradient(LossRows rows, T* logits, const float* max_T,
                                                     const float* sum_T, const float* weight_T) {
  const int64_t token = blockIdx.x;
  T* const row = logits + token * rows.columns;
  const float weight = weight_T[token], max = max_T[token];
  const float scale = weight == 0 ? 0 : weight / sum_T[token];
  const int64_t label = rows.LabelColumn(token);
  const auto gradient = [&](float x, int64_t column) {
    if (weight == 0 || column >= rows.counted) return 0.0f;  // even if a logit is NaN
    const float tanh = rows.softcap > 0 ? x / rows.softcap : 0.0f;
    return (Exp<T>(x - max) * scale - (column == label ? weight : 0.0f)) * (1 - tanh * tanh);
  };
  const int64_t vectors = rows.columns / N;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    auto values = Load<T, N>(row, i);
    for (int j = 0; j < N; ++j) {
      values.values[j] = FromFloat<T>(gradient(ToFloat(values.values[j]), i * N + j));
    }
    Store<T, N>(row, i, values);
  }
  for (int64_t i = vectors * N + threadIdx.x; i < rows.columns; i += kThreads) {
    row[i] = FromFloat<T>(gradient(ToFloat(row[i]), i));
  }
}

__global__ void __launch_bounds__(kThreads)
    Rescale(int64_t tokens, const float* old_max, const float* new_max, float* sum) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= tokens) return;
  // Equal maxima may both be infinite.
  if (old_max[t] != new_max[t]) sum[t] *= expf(old_max[t] - new_max[t]);
}

__global__ void __launch_bounds__(kThreads)
    Loss(int64_t tokens, const float* max, const float* sum, const float* target, float* loss) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) loss[t] = logf(sum[t]) + (max[t] - target[t]);
}

__global__ void __launch_bounds__(kThreads)
    Hits(int64_t tokens, const float* max, const float* target, float* hit) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) hit[t] = target[t] >= max[t] ? 1.0f : 0.0f;
}

// There is one block: the sums are small, and their order is fixed.
__global__ void __launch_bounds__(kThreads)
    AddWeighted(int64_t tokens, const float* x, const float* weight, float* out) {
  __shared__ double partial[kWarps];
  double sum = 0, weights = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads) {
    if (weight[t] != 0) sum += double{weight[t]} * x[t];
    weights += weight[t];
  }
  sum = BlockSum(sum, partial);
  weights = BlockSum(weights, partial);
  if (threadIdx.x != 0) return;
  out[0] += static_cast<float>(sum);
  out[1] += static_cast<float>(weights);
}

LossRows RowsOf(const Tensor& logits_TV, const Tensor& labels_T, const VocabRange& range) {
  LossRows rows;
  rows.tokens = logits_TV.dim(0);
  rows.columns = logits_TV.dim(1);
  rows.counted = std::clamp<int64_t>(range.vocab_size - range.first_column, 0, rows.columns);
  rows.first_column = range.first_column;
  rows.labels_T = labels_T.data<int32_t>();
  return rows;
}

template <typename T>
bool HasVectorRows(const Tensor& logits_TV) {
  return logits_TV.dim(1) % kVector<T> == 0 && IsAligned({logits_TV.raw()});
}

}  // namespace

void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T) {
  const LossRows rows = RowsOf(logits_TV, labels_T, range);
  if (rows.tokens == 0) return;
  WithType(logits_TV.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = HasVectorRows<T>(logits_TV) ? Statistics<T, kVector<T>> : Statistics<T, 1>;
    kernel<<<Blocks(rows.tokens, 1), kThreads, 0, Handle(stream)>>>(
        rows, As(type, logits_TV), max_T.data<float>(), sum_T.data<float>(),
        target_T.data<float>());
  });
  CheckLaunched("cross-entropy statistics");
}

void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T) {
  const int64_t tokens = sum_T.dim(0);
  if (tokens == 0) return;
  Rescale<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      tokens, old_max_T.data<float>(), new_max_T.data<float>(), sum_T.data<float>());
  CheckLaunched("rescaling of sums");
}

void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T) {
  const int64_t tokens = loss_T.dim(0);
  if (tokens == 0) return;
  Loss<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      tokens, max_T.data<float>(), sum_T.data<float>(), target_T.data<float>(),
      loss_T.data<float>());
  CheckLaunched("cross-entropy loss");
}

void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T) {
  const int64_t tokens = hit_T.dim(0);
  if (tokens == 0) return;
  Hits<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(
      tokens, max_T.data<float>(), target_T.data<float>(), hit_T.data<float>());
  CheckLaunched("cross-entropy hits");
}

void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T, float softcap) {
  LossRows rows = RowsOf(logits_TV, labels_T, range);
  rows.softcap = softcap;
  if (logits_TV.numel() == 0) return;
  WithType(logits_TV.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = HasVectorRows<T>(logits_TV) ? Gradient<T, kVector<T>> : Gradient<T, 1>;
    kernel<<<Blocks(rows.tokens, 1), kThreads, 0, Handle(stream)>>>(
        rows, As(type, logits_TV), max_T.data<float>(), sum_T.data<float>(),
        weight_T.data<float>());
  });
  CheckLaunched("cross-entropy backward");
}

void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2) {
  AddWeighted<<<1, kThreads, 0, Handle(stream)>>>(x_T.numel(), x_T.data<float>(),
                                                  weight_T.data<float>(), out_2.data<float>());
  CheckLaunched("weighted sum");
}

MEGATRON_CUDA_KERNEL(CrossEntropyStatistics);
MEGATRON_CUDA_KERNEL(RescaleSum);
MEGATRON_CUDA_KERNEL(CrossEntropyLoss);
MEGATRON_CUDA_KERNEL(CrossEntropyHits);
MEGATRON_CUDA_KERNEL(CrossEntropyBackward);
MEGATRON_CUDA_KERNEL(WeightedSum);

}  // namespace megatron::ops::cuda
