#include <algorithm>

#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dynamic_shared.cuh"
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
  // The number of a row's vectors of N elements that count.
  template <int N>
  __host__ __device__ int64_t CountedVectors() const {
    return (counted + N - 1) / N;
  }
};

struct Softmax {
  float max, sum;  // the sum is that of exp(logit - max)
};

__device__ inline float LossOf(const Softmax& softmax, float target) {
  return logf(softmax.sum) + (softmax.max - target);
}

__device__ inline float HitOf(float max, float target) { return target >= max ? 1.0f : 0.0f; }

template <typename T>
__device__ float TargetOf(const T* row, int64_t label) {
  return label < 0 ? 0 : ToFloat(row[label]);
}

// The number of vectors that a thread loads before it computes with the first.
constexpr int kInFlight = 4;

// The softmax of a block's row, for every thread. read(i) is its i-th vector of N elements, which
// one thread asks for, once. Each thread keeps a maximum and the sum for that maximum. `partial` is
// shared memory of kWarps. Here and below each multiplication says whether it is fused with an
// addition, so that all kernels have the same bits.
template <typename T, int N, typename Read>
__device__ Softmax SoftmaxOf(const LossRows& rows, float* partial, Read read) {
  const int64_t vectors = rows.CountedVectors<N>();
  float max = -INFINITY, sum = 0;
  for (int64_t first = threadIdx.x; first < vectors; first += kInFlight * kThreads) {
    Vector<T, N> values[kInFlight] = {};
#pragma unroll
    for (int v = 0; v < kInFlight; ++v) {
      const int64_t i = first + v * kThreads;
      if (i < vectors) values[v] = read(i);
    }
#pragma unroll
    for (int v = 0; v < kInFlight; ++v) {
      const int64_t left = rows.counted - (first + v * kThreads) * N;
      if (left > 0) {
        float x[N], largest = max;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          x[j] = j < left ? ToFloat(values[v].values[j]) : -INFINITY;
          largest = fmaxf(largest, x[j]);
        }
        if (largest > max) {
          sum = __fmul_rn(sum, Exp<T>(max - largest));
          max = largest;
        }
        // Minus infinity must not be subtracted from itself.
        const float base = fmaxf(max, kLowest);
#pragma unroll
        for (int j = 0; j < N; ++j) sum += Exp<T>(x[j] - base);
      }
    }
  }
  const float row_max = BlockMax(max, partial);
  sum = __fmul_rn(sum, Exp<T>(max - fmaxf(row_max, kLowest)));
  return {row_max, BlockSum(sum, partial)};
}

// Writes the gradient over a block's row. read(i) is the i-th vector of N logits, which the thread
// asks for that then overwrites it.
template <typename T, int N, typename Read>
__device__ void WriteGradient(const LossRows& rows, const Softmax& softmax, int64_t label,
                              float weight, T* row, Read read) {
  const float scale = weight == 0 ? 0 : weight / softmax.sum;
  for (int64_t i = threadIdx.x; i < rows.columns / N; i += kThreads) {
    Vector<T, N> values = {};
    if (weight != 0 && i * N < rows.counted) {  // else zeros, even if a logit is NaN
      values = read(i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int64_t column = i * N + j;
        const float x = ToFloat(values.values[j]);
        const float tanh = rows.softcap > 0 ? x / rows.softcap : 0.0f;
        const float share = fmaf(Exp<T>(x - softmax.max), scale, column == label ? -weight : 0.0f);
        const float gradient = share * fmaf(-tanh, tanh, 1.0f);
        values.values[j] = FromFloat<T>(column < rows.counted ? gradient : 0.0f);
      }
    }
    Store<T, N>(row, i, values);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    Statistics(LossRows rows, const T* logits, float* max_T, float* sum_T, float* target_T) {
  __shared__ float partial[kWarps];
  const int64_t token = blockIdx.x;
  const T* const row = logits + token * rows.columns;
  const Softmax softmax =
      SoftmaxOf<T, N>(rows, partial, [&](int64_t i) { return Load<T, N>(row, i); });
  if (threadIdx.x != 0) return;
  max_T[token] = softmax.max;
  sum_T[token] = softmax.sum;
  target_T[token] = TargetOf(row, rows.LabelColumn(token));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) Gradient(LossRows rows, T* logits, const float* max_T,
                                                     const float* sum_T, const float* weight_T) {
  const int64_t token = blockIdx.x;
  T* const row = logits + token * rows.columns;
  WriteGradient<T, N>(rows, {max_T[token], sum_T[token]}, rows.LabelColumn(token), weight_T[token],
                      row, [&](int64_t i) { return Load<T, N>(row, i); });
}

// Each thread keeps its vectors among the first `kept` of the row in shared memory until their
// gradient overwrites them, and reads its others again. No other thread reads them. Where there are
// no weights, the logits stay.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    LossAndGradient(LossRows rows, T* logits, int64_t kept, const float* weight_T, float* loss_T,
                    float* hit_T) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float partial[kWarps];
  T* const copy = reinterpret_cast<T*>(memory);
  const int64_t token = blockIdx.x;
  T* const row = logits + token * rows.columns;
  const int64_t label = rows.LabelColumn(token);
  // Other threads overwrite it after they have met this one in the sums over the block.
  const float target = TargetOf(row, label);
  const Softmax softmax = SoftmaxOf<T, N>(rows, partial, [&](int64_t i) {
    const auto values = Load<T, N>(row, i);
    if (i < kept) Store<T, N>(copy, i, values);
    return values;
  });
  if (threadIdx.x == 0) {
    loss_T[token] = LossOf(softmax, target);
    if (hit_T != nullptr) hit_T[token] = HitOf(softmax.max, target);
  }
  if (weight_T == nullptr) return;
  WriteGradient<T, N>(rows, softmax, label, weight_T[token], row, [&](int64_t i) {
    return i < kept ? Load<T, N>(copy, i) : Load<T, N>(row, i);
  });
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
  if (t < tokens) loss[t] = LossOf({max[t], sum[t]}, target[t]);
}

__global__ void __launch_bounds__(kThreads)
    Hits(int64_t tokens, const float* max, const float* target, float* hit) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) hit[t] = HitOf(max[t], target[t]);
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

// The shared memory of a block for its row: what each has without asking, and what it asks for. A
// multiprocessor of compute capability 9.0 has 228 KiB, of which the system takes 1 KiB a block. So
// it has room for two blocks: one computes while the other waits for its row.
constexpr int64_t kUnaskedBytes = (48 << 10) - kWarps * sizeof(float), kAskedBytes = 112 << 10;

template <typename T, int N>
void LaunchLossAndGradient(const Stream& stream, const LossRows& rows, T* logits,
                           const float* weight_T, float* loss_T, float* hit_T) {
  constexpr int64_t kBytes = N * sizeof(T);
  const auto kernel = LossAndGradient<T, N>;
  int64_t kept = weight_T == nullptr ? 0 : rows.CountedVectors<N>();
  if (kept * kBytes > kUnaskedBytes) {
    const bool is_given = AllowDynamicShared(kernel, kAskedBytes) == cudaSuccess;
    if (!is_given) cudaGetLastError();  // the device has less, and the next launch has no error
    kept = std::min(kept, (is_given ? kAskedBytes : kUnaskedBytes) / kBytes);
  }
  const auto bytes = static_cast<size_t>(kept * kBytes);
  kernel<<<Blocks(rows.tokens, 1), kThreads, bytes, Handle(stream)>>>(rows, logits, kept, weight_T,
                                                                      loss_T, hit_T);
  CheckLaunched("cross-entropy");
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.raw()); }

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

void CrossEntropy(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                  const VocabRange& range, const Tensor& weight_T, const Tensor& loss_T,
                  const Tensor& hit_T, float softcap) {
  LossRows rows = RowsOf(logits_TV, labels_T, range);
  rows.softcap = softcap;
  if (rows.tokens == 0) return;
  WithType(logits_TV.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto launch = HasVectorRows<T>(logits_TV) ? LaunchLossAndGradient<T, kVector<T>>
                                                    : LaunchLossAndGradient<T, 1>;
    launch(stream, rows, As(type, logits_TV), FloatsOf(weight_T), FloatsOf(loss_T),
           FloatsOf(hit_T));
  });
}

void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2) {
  AddWeighted<<<1, kThreads, 0, Handle(stream)>>>(x_T.numel(), x_T.data<float>(),
                                                  weight_T.data<float>(), out_2.data<float>());
  CheckLaunched("weighted sum");
}

MEGATRON_CUDA_KERNEL(CrossEntropy);
MEGATRON_CUDA_KERNEL(CrossEntropyStatistics);
MEGATRON_CUDA_KERNEL(RescaleSum);
MEGATRON_CUDA_KERNEL(CrossEntropyLoss);
MEGATRON_CUDA_KERNEL(CrossEntropyHits);
MEGATRON_CUDA_KERNEL(CrossEntropyBackward);
MEGATRON_CUDA_KERNEL(WeightedSum);

}  // namespace megatron::ops::cuda
