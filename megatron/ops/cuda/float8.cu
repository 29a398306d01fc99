// Quantization to 8-bit floats, and the gradient of a bias, which products of 8-bit floats do not
// compute.
#include <algorithm>

#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/float8.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/float8/flat.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops::cuda {
namespace {

// Number of blocks that compute the maximum of a tensor; each loops over its share.
constexpr int64_t kMaxBlocks = 1024;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) MaxOfBlock(const T* x, int64_t vectors, float* maxima) {
  __shared__ float partial[kWarps];
  float largest = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += step) {
    const auto values = Load<T, N>(x, i);
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, fabsf(ToFloat(values.values[j])));
  }
  largest = BlockMax(largest, partial);
  if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

// `amax` is written, or with `accumulate` raised.
__global__ void __launch_bounds__(kThreads)
    MaxOfAll(const float* maxima, int count, bool accumulate, float* amax) {
  __shared__ float partial[kWarps];
  float largest = accumulate ? *amax : 0;
  for (int i = threadIdx.x; i < count; i += kThreads) largest = fmaxf(largest, maxima[i]);
  largest = BlockMax(largest, partial);
  if (threadIdx.x == 0) *amax = largest;
}

template <typename T, int N>
void LaunchMax(const Stream& stream, const T* x, int64_t count, float* amax) {
  const int64_t vectors = count / N;
  const unsigned blocks = std::min(Blocks(vectors, kThreads), static_cast<unsigned>(kMaxBlocks));
  float* const maxima = static_cast<float*>(
      stream.cuda()->Workspace(kMaxBlocks * static_cast<int64_t>(sizeof(float))));
  if (blocks > 0) MaxOfBlock<T, N><<<blocks, kThreads, 0, Handle(stream)>>>(x, vectors, maxima);
  MaxOfAll<<<1, kThreads, 0, Handle(stream)>>>(maxima, static_cast<int>(blocks),
                                               /*accumulate=*/false, amax);
  CheckLaunched("the largest magnitude");
}

struct QuantizeArgs {
  const void* x;
  const float* amax;
  int64_t rows, columns, padded_rows;
  float largest_code;
  __nv_fp8_interpretation_t format;
  uint8_t *codes, *transposed;  // may be null
  float* inverse_scale;
  float* maxima;  // one of each tile; may be null
};

constexpr int kTile = 64;
// Rows are padded by one bank, so that the columns of a tile lie in different banks.
constexpr int kPitch = kTile + 1;
constexpr int kRowsAtOnce = kVectorBytes;

// Each block has one tile of kTile x kTile.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) QuantizeTile(QuantizeArgs args) {
  __shared__ uint8_t tile[kTile * kPitch];
  __shared__ float partial[kWarps];
  float largest = 0;
  const float scale = ScaleOf(args.largest_code, *args.amax);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.inverse_scale = 1 / scale;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kTile;

  for (int i = threadIdx.x; i < kTile * kTile / N; i += kThreads) {
    const int r = i / (kTile / N), c = i % (kTile / N) * N;
    const int64_t row = first_row + r, column = first_column + c;
    if (column >= args.columns) continue;
    Vector<uint8_t, N> codes = {};
    if (row < args.rows) {
      const int64_t at = row * args.columns + column;
      const auto values = Load<T, N>(static_cast<const T*>(args.x) + at, 0);
      for (int j = 0; j < N; ++j) {
        const float x = ToFloat(values.values[j]);
        largest = fmaxf(largest, fabsf(x));
        codes.values[j] = Code(args.format, x * scale);
      }
      if (args.codes != nullptr) Store<uint8_t, N>(args.codes + at, 0, codes);
    }
    for (int j = 0; j < N; ++j) tile[r * kPitch + c + j] = codes.values[j];
  }
  if (args.maxima != nullptr) {
    largest = BlockMax(largest, partial);
    if (threadIdx.x == 0)
      args.maxima[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = largest;
  }
  if (args.transposed == nullptr) return;
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile / kRowsAtOnce; i += kThreads) {
    const int c = i / (kTile / kRowsAtOnce), r = i % (kTile / kRowsAtOnce) * kRowsAtOnce;
    const int64_t row = first_row + r, column = first_column + c;
    if (column >= args.columns || row >= args.padded_rows) continue;
    Vector<uint8_t, kRowsAtOnce> codes;
    for (int j = 0; j < kRowsAtOnce; ++j) codes.values[j] = tile[(r + j) * kPitch + c];
    Store<uint8_t, kRowsAtOnce>(args.transposed + column * args.padded_rows + row, 0, codes);
  }
}

// A run of elements may begin anywhere in memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Encode(const T* x, const float* amax, float largest_code, int64_t count, uint8_t* codes) {
  const float scale = ScaleOf(largest_code, *amax);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) codes[i] = Code(__NV_E4M3, ToFloat(x[i]) * scale);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Decode(const uint8_t* codes, const float* amax, float largest_code, int64_t count, T* x) {
  const float inverse = 1 / ScaleOf(largest_code, *amax);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = FromFloat<T>(ValueOfE4M3(codes[i]) * inverse);
}

// Raises *largest, unless it is null, to the largest magnitude.
void LaunchQuantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                    const Float8Tensor& out, float* largest) {
  CHECK(IsAligned({out.codes_RC.raw(), out.codes_CS.raw()}));
  QuantizeArgs args;
  args.x = x_RC.raw();
  args.amax = amax_1.data<float>();
  args.rows = x_RC.dim(0);
  args.columns = x_RC.dim(1);
  args.padded_rows = Float8Padded(args.rows);
  args.largest_code = Float8Max(out.format);
  args.format = InterpretationOf(out.format);
  args.codes = static_cast<uint8_t*>(out.codes_RC.raw());
  args.transposed = static_cast<uint8_t*>(out.codes_CS.raw());
  args.inverse_scale = out.inverse_scale_1.data<float>();
  // At least one block is launched: it writes the scale.
  const dim3 tiles(std::max(1u, Blocks(args.padded_rows, kTile)),
                   std::max(1u, Blocks(args.columns, kTile)));
  const int64_t count = static_cast<int64_t>(tiles.x) * tiles.y;
  args.maxima = largest == nullptr ? nullptr
                                   : static_cast<float*>(stream.cuda()->Workspace(
                                         count * static_cast<int64_t>(sizeof(float))));
  WithType(x_RC.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int N = kVector<T>;
    if (IsAligned({x_RC.raw()})) {
      QuantizeTile<T, N><<<tiles, kThreads, 0, Handle(stream)>>>(args);
    } else {
      QuantizeTile<T, 1><<<tiles, kThreads, 0, Handle(stream)>>>(args);
    }
  });
  CheckLaunched("quantization");
  if (largest == nullptr) return;
  MaxOfAll<<<1, kThreads, 0, Handle(stream)>>>(args.maxima, static_cast<int>(count),
                                               /*accumulate=*/true, largest);
  CheckLaunched("the largest magnitude");
}

}  // namespace

void AbsMax(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1) {
  WithType(x_RC.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int N = kVector<T>;
    if (x_RC.numel() % N == 0 && IsAligned({x_RC.raw()})) {
      LaunchMax<T, N>(stream, As(type, x_RC), x_RC.numel(), amax_1.data<float>());
    } else {
      LaunchMax<T, 1>(stream, As(type, x_RC), x_RC.numel(), amax_1.data<float>());
    }
  });
}

void Quantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
              const Float8Tensor& out) {
  LaunchQuantize(stream, x_RC, amax_1, out, nullptr);
}

void QuantizeAndMeasure(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                        const Float8Tensor& out, const Tensor& largest_1) {
  LaunchQuantize(stream, x_RC, amax_1, out, largest_1.data<float>());
}

void EncodeFloat8(const Stream& stream, const Tensor& x_N, const Tensor& amax_1,
                  const Tensor& codes_N) {
  const int64_t count = x_N.numel();
  if (count == 0) return;
  WithType(x_N.dtype(), [&](auto* type) {
    Encode<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
        As(type, x_N), amax_1.data<float>(), Float8Max(Float8Format::kE4M3), count,
        codes_N.data<uint8_t>());
  });
  CheckLaunched("codes of a run");
}

void DecodeFloat8(const Stream& stream, const Tensor& codes_N, const Tensor& amax_1,
                  const Tensor& x_N) {
  const int64_t count = x_N.numel();
  if (count == 0) return;
  WithType(x_N.dtype(), [&](auto* type) {
    Decode<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
        codes_N.data<uint8_t>(), amax_1.data<float>(), Float8Max(Float8Format::kE4M3), count,
        As(type, x_N));
  });
  CheckLaunched("values of a run");
}

void BiasBackward(const Stream& stream, const Tensor& dy_TO, const Tensor& dbias_O) {
  AddColumnSums(stream, dy_TO, dbias_O);
}

MEGATRON_CUDA_KERNEL(AbsMax);
MEGATRON_CUDA_KERNEL(Quantize);
MEGATRON_CUDA_KERNEL(QuantizeAndMeasure);
MEGATRON_CUDA_KERNEL(EncodeFloat8);
MEGATRON_CUDA_KERNEL(DecodeFloat8);
MEGATRON_CUDA_KERNEL(BiasBackward);

}  // namespace megatron::ops::cuda
