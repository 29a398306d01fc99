#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/layer_norm.h"

namespace megatron::ops::cuda {
namespace {

// Slices of rows in the first stage of the parameter gradients. A constant, not the number of
// multiprocessors: the order of the sum must not depend on the device.
constexpr int kSlices = 128;

__device__ int64_t Offset(const RowLayout& layout, int64_t row) {
  // Almost always: divisions of 64 bits take longer than the row's element.
  if (layout.sizes[0] * layout.sizes[1] == 1) return row * layout.strides[2];
  const int64_t last = row % layout.sizes[2];
  const int64_t rest = row / layout.sizes[2];
  return (rest / layout.sizes[1]) * layout.strides[0] +
         (rest % layout.sizes[1]) * layout.strides[1] + last * layout.strides[2];
}

__device__ float Scale(float gamma, bool zero_centered) {
  return zero_centered ? 1 + gamma : gamma;
}

// One block a row. The row is read three times, by design: the second and third come from L1, which
// holds the rows of all blocks of a multiprocessor, and no width needs its own kernel.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) Forward(LayerNormForwardArgs args) {
  __shared__ float partial[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t vectors = args.shape.hidden / N;
  const float width = static_cast<float>(args.shape.hidden);
  const T* x = static_cast<const T*>(args.x_TH) + Offset(args.x_rows, row);

  float mean = 0;
  if (!args.shape.rms) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
      const auto values = Load<T, N>(x, i);
      for (int j = 0; j < N; ++j) sum += ToFloat(values.values[j]);
    }
    mean = BlockSum(sum, partial) / width;
  }
  float squares = 0;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto values = Load<T, N>(x, i);
    for (int j = 0; j < N; ++j) {
      const float centered = ToFloat(values.values[j]) - mean;
      squares += centered * centered;
    }
  }
  const float rstd = rsqrtf(BlockSum(squares, partial) / width + args.shape.epsilon);
  if (threadIdx.x == 0) {
    if (!args.shape.rms) args.mean_T[row] = mean;
    args.rstd_T[row] = rstd;
  }

  const T* gamma = static_cast<const T*>(args.gamma_H);
  const T* beta = static_cast<const T*>(args.beta_H);
  T* y = static_cast<T*>(args.y_TH) + Offset(args.y_rows, row);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto values = Load<T, N>(x, i);
    const auto gammas = Load<T, N>(gamma, i);
    Vector<T, N> betas = {};
    if (beta != nullptr) betas = Load<T, N>(beta, i);
    Vector<T, N> out;
    for (int j = 0; j < N; ++j) {
      const float normalized = (ToFloat(values.values[j]) - mean) * rstd;
      const float scale = Scale(ToFloat(gammas.values[j]), args.shape.zero_centered_gamma);
      out.values[j] = FromFloat<T>(normalized * scale + ToFloat(betas.values[j]));
    }
    Store<T, N>(y, i, out);
  }
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dresidual, with g = dy * scale; RMSNorm has
// no mean(g). One block a row; each element is read before its place in dx is written.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) BackwardInput(LayerNormBackwardArgs args) {
  __shared__ float partial[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t vectors = args.shape.hidden / N;
  const float width = static_cast<float>(args.shape.hidden);
  const bool zero_centered = args.shape.zero_centered_gamma;
  const T* dy = static_cast<const T*>(args.dy_TH) + Offset(args.dy_rows, row);
  const T* x = static_cast<const T*>(args.x_TH) + Offset(args.x_rows, row);
  const T* gamma = static_cast<const T*>(args.gamma_H);
  const float mean = args.shape.rms ? 0 : args.mean_T[row];
  const float rstd = args.rstd_T[row];

  float sum_g = 0, sum_gx = 0;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto dys = Load<T, N>(dy, i);
    const auto xs = Load<T, N>(x, i);
    const auto gammas = Load<T, N>(gamma, i);
    for (int j = 0; j < N; ++j) {
      const float g = ToFloat(dys.values[j]) * Scale(ToFloat(gammas.values[j]), zero_centered);
      sum_g += g;
      sum_gx += g * (ToFloat(xs.values[j]) - mean) * rstd;
    }
  }
  const float mean_g = args.shape.rms ? 0 : BlockSum(sum_g, partial) / width;
  const float mean_gx = BlockSum(sum_gx, partial) / width;

  const T* dresidual = static_cast<const T*>(args.dresidual_TH);
  if (dresidual != nullptr) dresidual += Offset(args.dresidual_rows, row);
  T* dx = static_cast<T*>(args.dx_TH) + Offset(args.dx_rows, row);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto dys = Load<T, N>(dy, i);
    const auto xs = Load<T, N>(x, i);
    const auto gammas = Load<T, N>(gamma, i);
    Vector<T, N> around = {};
    if (dresidual != nullptr) around = Load<T, N>(dresidual, i);
    Vector<T, N> out;
    for (int j = 0; j < N; ++j) {
      const float g = ToFloat(dys.values[j]) * Scale(ToFloat(gammas.values[j]), zero_centered);
      const float normalized = (ToFloat(xs.values[j]) - mean) * rstd;
      const float through = rstd * (g - mean_g - normalized * mean_gx);
      out.values[j] = FromFloat<T>(through + ToFloat(around.values[j]));
    }
    Store<T, N>(dx, i, out);
  }
}

__host__ __device__ int64_t RowsPerSlice(int64_t rows) { return (rows + kSlices - 1) / kSlices; }

// First stage: column h of slice s sums its rows in ascending order. Threads are columns, so that a
// warp reads neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads) BackwardParametersOfSlice(LayerNormBackwardArgs args) {
  const int64_t hidden = args.shape.hidden;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= hidden) return;
  const int64_t rows = args.x_rows.rows();
  const int64_t first = blockIdx.y * RowsPerSlice(rows);
  const int64_t last = min(first + RowsPerSlice(rows), rows);
  const T* dy = static_cast<const T*>(args.dy_TH) + column;
  const T* x = static_cast<const T*>(args.x_TH) + column;
  float dgamma = 0, dbeta = 0;
  for (int64_t row = first; row < last; ++row) {
    const float mean = args.shape.rms ? 0 : args.mean_T[row];
    const float g = ToFloat(dy[Offset(args.dy_rows, row)]);
    dgamma += g * (ToFloat(x[Offset(args.x_rows, row)]) - mean) * args.rstd_T[row];
    dbeta += g;
  }
  args.workspace[blockIdx.y * hidden + column] = dgamma;
  args.workspace[(kSlices + blockIdx.y) * hidden + column] = dbeta;
}

// Second stage: the slices' sums, in order, onto the gradients.
__global__ void __launch_bounds__(kThreads) SumSlices(LayerNormBackwardArgs args) {
  const int64_t hidden = args.shape.hidden;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= hidden) return;
  float dgamma = 0, dbeta = 0;
  for (int64_t slice = 0; slice < kSlices; ++slice) {
    dgamma += args.workspace[slice * hidden + column];
    dbeta += args.workspace[(kSlices + slice) * hidden + column];
  }
  if (args.dgamma_H != nullptr) args.dgamma_H[column] += dgamma;
  if (args.dbeta_H != nullptr) args.dbeta_H[column] += dbeta;
}

bool Aligned(const void* pointer, const RowLayout& layout, int64_t element_bytes) {
  int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  if (pointer == nullptr) return true;
  for (int64_t stride : layout.strides) bits |= stride * element_bytes;
  return bits % kVectorBytes == 0;
}

template <typename T>
bool Vectorizable(int64_t hidden) {
  return hidden % kVector<T> == 0;
}

template <typename T>
bool Vectorizable(const LayerNormForwardArgs& args) {
  const RowLayout one_row = {};
  return Vectorizable<T>(args.shape.hidden) && Aligned(args.x_TH, args.x_rows, sizeof(T)) &&
         Aligned(args.y_TH, args.y_rows, sizeof(T)) && Aligned(args.gamma_H, one_row, sizeof(T)) &&
         Aligned(args.beta_H, one_row, sizeof(T));
}

template <typename T>
bool Vectorizable(const LayerNormBackwardArgs& args) {
  const RowLayout one_row = {};
  return Vectorizable<T>(args.shape.hidden) && Aligned(args.dy_TH, args.dy_rows, sizeof(T)) &&
         Aligned(args.x_TH, args.x_rows, sizeof(T)) &&
         Aligned(args.dx_TH, args.dx_rows, sizeof(T)) &&
         Aligned(args.dresidual_TH, args.dresidual_rows, sizeof(T)) &&
         Aligned(args.gamma_H, one_row, sizeof(T));
}

template <typename T>
void ForwardOf(const LayerNormForwardArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.x_rows.rows());
  if (Vectorizable<T>(args)) {
    Forward<T, kVector<T>><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    Forward<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  CheckLaunched("layer norm forward");
}

template <typename T>
void BackwardOf(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  // The parameters first: dx may take dy's place.
  if (args.dgamma_H != nullptr || args.dbeta_H != nullptr) {
    const auto tiles = static_cast<unsigned>((args.shape.hidden + kThreads - 1) / kThreads);
    BackwardParametersOfSlice<T><<<dim3(tiles, kSlices), kThreads, 0, stream>>>(args);
    SumSlices<<<tiles, kThreads, 0, stream>>>(args);
    CheckLaunched("layer norm backward, parameters");
  }
  const auto blocks = static_cast<unsigned>(args.x_rows.rows());
  if (Vectorizable<T>(args)) {
    BackwardInput<T, kVector<T>><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    BackwardInput<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  CheckLaunched("layer norm backward, input");
}

}  // namespace

void LaunchLayerNormForward(const LayerNormForwardArgs& args, cudaStream_t stream) {
  if (args.x_rows.rows() == 0) return;
  switch (args.shape.dtype) {
    case DType::kFloat32:
      return ForwardOf<float>(args, stream);
    case DType::kBFloat16:
      return ForwardOf<__nv_bfloat16>(args, stream);
    case DType::kFloat16:
      return ForwardOf<__half>(args, stream);
    default:
      LOG(FATAL) << "no layer norm in " << Name(args.shape.dtype);
  }
}

int64_t LayerNormBackwardWorkspace(int64_t hidden) { return 2 * kSlices * hidden; }

void LaunchLayerNormBackward(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  if (args.x_rows.rows() == 0) return;
  switch (args.shape.dtype) {
    case DType::kFloat32:
      return BackwardOf<float>(args, stream);
    case DType::kBFloat16:
      return BackwardOf<__nv_bfloat16>(args, stream);
    case DType::kFloat16:
      return BackwardOf<__half>(args, stream);
    default:
      LOG(FATAL) << "no layer norm in " << Name(args.shape.dtype);
  }
}

}  // namespace megatron::ops::cuda
