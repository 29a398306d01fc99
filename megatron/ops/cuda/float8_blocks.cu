// Quantization to 8-bit floats with a scale for each part of a matrix, and codes of runs of such a
// matrix.
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/float8.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/float8/flat_blocks.h"
#include "megatron/ops/float8/quantize_blocks.h"

namespace megatron::ops::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kFloat8Block);
// Two threads work on each row or column of a block.
constexpr int kHalf = kBlock / 2;
static_assert(kThreads == 2 * kBlock, "threads");

struct Form {
  uint8_t* codes;  // null: the form is not written
  float* inverse_scales;
  int64_t pitch, scales_rows, scales_pitch;
};

struct BlocksArgs {
  const void* x;
  int64_t rows, columns;
  float largest_code;
  __nv_fp8_interpretation_t format;
  bool power_of_two, whole_blocks;
  Form as_it_is, transposed;
};

__device__ float PartScale(float largest_code, float amax, bool power_of_two) {
  const float scale = ScaleOf(largest_code, amax);
  return power_of_two ? ldexpf(1, ilogbf(scale)) : scale;
}

// The kHalf elements of x that a thread has of a row or a column of its block.
template <typename T>
struct Line {
  const T* x;  // the first element
  int64_t step;
  int count;  // elements that exist

  __device__ float At(int i) const { return ToFloat(x[i * step]); }
  __device__ float Largest() const {
    float largest = 0;
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(At(i)));
    return largest;
  }
};

// Writes the codes of a line, and zeros behind it, to `out`, which has room for `room` codes, a
// multiple of kVectorBytes.
template <typename T>
__device__ void WriteLine(const Line<T>& line, float scale, __nv_fp8_interpretation_t format,
                          uint8_t* out, int room) {
  for (int i = 0; i < room; i += kVectorBytes) {
    Vector<uint8_t, kVectorBytes> codes;
    for (int j = 0; j < kVectorBytes; ++j) {
      codes.values[j] =
          i + j < line.count ? Code(format, line.At(i + j) * scale) : static_cast<uint8_t>(0);
    }
    Store<uint8_t, kVectorBytes>(out + i, 0, codes);
  }
}

__device__ int Clamp(int64_t count) {
  return count < 0 ? 0 : count > kHalf ? kHalf : static_cast<int>(count);
}

// Writes inverse scales of the block at (row_block, column_block) of a form: one, or that of line
// `i`. Those that belong to no part are 1.
__device__ void WriteScale(const Form& form, bool whole, int64_t row_block, int64_t column_block,
                           int i, float inverse) {
  const int64_t row = whole ? row_block : column_block;
  const int64_t column = whole ? column_block : row_block * kBlock + i;
  if (row < form.scales_rows && column < form.scales_pitch)
    form.inverse_scales[row * form.scales_pitch + column] = inverse;
}

// Quantizes a form's part of a block: `mine` is what this thread has of line `i`, `room` the codes
// that it writes.
template <typename T>
__device__ void QuantizeForm(const BlocksArgs& args, const Form& form, const Line<T>& mine,
                             int64_t row_block, int64_t column_block, int i, int half, int room,
                             bool exists, float* partial, float* halves) {
  float largest = mine.Largest();
  if (args.whole_blocks) {
    largest = BlockMax(largest, partial);
  } else {
    __syncthreads();  // what the halves held before has been read
    halves[half * kBlock + i] = largest;
    __syncthreads();
    largest = fmaxf(halves[i], halves[kBlock + i]);
  }
  const float scale =
      exists || args.whole_blocks ? PartScale(args.largest_code, largest, args.power_of_two) : 1;
  if (half == 0 && (!args.whole_blocks || i == 0))
    WriteScale(form, args.whole_blocks, row_block, column_block, i, 1 / scale);
  // The last column of blocks has the scales up to a multiple of four.
  if (args.whole_blocks && half == 0 && i > 0 && i < 4 && (column_block + 1) * kBlock >= form.pitch)
    WriteScale(form, true, row_block, column_block + i, 0, 1);
  if (!exists) return;
  uint8_t* const out =
      form.codes + (row_block * kBlock + i) * form.pitch + column_block * kBlock + half * kHalf;
  WriteLine(mine, scale, args.format, out, room);
}

// A block of threads has one block of x.
template <typename T>
__global__ void __launch_bounds__(kThreads) QuantizeBlock(BlocksArgs args) {
  __shared__ float partial[kWarps];
  __shared__ float halves[2 * kBlock];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlock;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kBlock;
  const T* const x = static_cast<const T*>(args.x);
  if (args.as_it_is.codes != nullptr) {
    const int i = threadIdx.x / 2, half = threadIdx.x % 2;
    const int64_t row = first_row + i, column = first_column + half * kHalf;
    const bool exists = row < args.rows;
    const Line<T> mine = {x + row * args.columns + column, 1,
                          exists ? Clamp(args.columns - column) : 0};
    QuantizeForm(args, args.as_it_is, mine, blockIdx.x, blockIdx.y, i, half,
                 Clamp(args.as_it_is.pitch - column), exists, partial, halves);
  }
  if (args.transposed.codes != nullptr) {
    const int i = threadIdx.x % kBlock, half = threadIdx.x / kBlock;
    const int64_t row = first_row + half * kHalf, column = first_column + i;
    const bool exists = column < args.columns;
    const Line<T> mine = {x + row * args.columns + column, args.columns,
                          exists ? Clamp(args.rows - row) : 0};
    QuantizeForm(args, args.transposed, mine, blockIdx.y, blockIdx.x, i, half,
                 Clamp(args.transposed.pitch - row), exists, partial, halves);
  }
}

Form FormOf(const Float8Matrix& out) {
  if (out.codes.empty()) return {};
  CHECK(IsAligned({out.codes.raw()}));
  return {out.codes.data<uint8_t>(), out.inverse_scales.data<float>(), out.codes.dim(1),
          out.inverse_scales.dim(0), out.inverse_scales.dim(1)};
}

// A run of a matrix's elements.
struct RunArgs {
  int64_t begin, count, columns, across;  // `across`: the blocks of a row
  float largest_code;
  bool power_of_two;
};

// A block of threads finds the largest magnitude in one block of the matrix.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RaiseLargest(RunArgs args, const T* x, int64_t first_row_of_blocks, float* largest) {
  __shared__ float partial[kWarps];
  const int64_t row_block = first_row_of_blocks + blockIdx.x, column_block = blockIdx.y;
  float most = 0;
  for (int e = static_cast<int>(threadIdx.x); e < kBlock * kBlock; e += kThreads) {
    const int64_t row = row_block * kBlock + e / kBlock,
                  column = column_block * kBlock + e % kBlock;
    const int64_t i = row * args.columns + column - args.begin;
    if (column < args.columns && i >= 0 && i < args.count) most = fmaxf(most, fabsf(ToFloat(x[i])));
  }
  most = BlockMax(most, partial);
  float& of_block = largest[row_block * args.across + column_block];
  if (threadIdx.x == 0) of_block = fmaxf(of_block, most);
}

// Consecutive elements of a thread, which finds its row by one division.
constexpr int kOfThread = 8;

// Calls body(i, largest, scale, begins) for a thread's elements of the run; `begins` is whether the
// element's block is another one than that of the element before.
template <typename Body>
__device__ void ForEachElement(const RunArgs& args, const float* largest, Body body) {
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kOfThread;
  if (i >= args.count) return;
  const int64_t end = min(args.count, i + kOfThread);
  int64_t row = (args.begin + i) / args.columns, column = args.begin + i - row * args.columns;
  float most = 0, scale = 1;
  for (bool begins = true; i < end; ++i) {
    if (begins) {
      most = largest[row / kBlock * args.across + column / kBlock];
      scale = PartScale(args.largest_code, most, args.power_of_two);
    }
    body(i, most, scale, begins);
    if (++column == args.columns) {
      column = 0;
      ++row;
    }
    begins = column % kBlock == 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EncodeRun(RunArgs args, const T* x, const float* largest, uint8_t* codes) {
  ForEachElement(args, largest, [&](int64_t i, float, float scale, bool) {
    codes[i] = Code(__NV_E4M3, ToFloat(x[i]) * scale);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DecodeRun(RunArgs args, const uint8_t* codes, const float* largest, T* x) {
  float inverse = 1;
  int largest_code = 0;
  ForEachElement(args, largest, [&](int64_t i, float most, float scale, bool begins) {
    if (begins) {
      inverse = 1 / scale;
      largest_code = Code(__NV_E4M3, most * scale);
    }
    const bool is_largest = (codes[i] & 0x7f) == largest_code;
    const float value =
        is_largest ? ((codes[i] & 0x80) != 0 ? -most : most) : ValueOfE4M3(codes[i]) * inverse;
    x[i] = FromFloat<T>(value);
  });
}

RunArgs ArgsOf(const MatrixRun& run, int64_t count, bool power_of_two) {
  return {run.begin,
          count,
          run.columns,
          Float8BlocksAlong(run.columns),
          Float8Max(Float8Format::kE4M3),
          power_of_two};
}

}  // namespace

void AbsMaxOfBlocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                    const Tensor& largest_B) {
  const RunArgs args = ArgsOf(run, x_N.numel(), false);
  const int64_t elements = kBlock * run.columns;  // of a row of blocks
  const int64_t first = run.begin / elements, last = (run.begin + args.count - 1) / elements;
  const dim3 blocks(Blocks(last - first + 1, 1), Blocks(args.across, 1));
  WithType(x_N.dtype(), [&](auto* type) {
    RaiseLargest<<<blocks, kThreads, 0, Handle(stream)>>>(args, As(type, x_N), first,
                                                          largest_B.data<float>());
  });
  CheckLaunched("the largest magnitudes of blocks");
}

void EncodeFloat8Blocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& codes_N) {
  const RunArgs args = ArgsOf(run, x_N.numel(), power_of_two);
  WithType(x_N.dtype(), [&](auto* type) {
    EncodeRun<<<Blocks(args.count, kThreads * kOfThread), kThreads, 0, Handle(stream)>>>(
        args, As(type, x_N), largest_B.data<float>(), codes_N.data<uint8_t>());
  });
  CheckLaunched("codes of a run in blocks");
}

void DecodeFloat8Blocks(const Stream& stream, const Tensor& codes_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& x_N) {
  const RunArgs args = ArgsOf(run, x_N.numel(), power_of_two);
  WithType(x_N.dtype(), [&](auto* type) {
    DecodeRun<<<Blocks(args.count, kThreads * kOfThread), kThreads, 0, Handle(stream)>>>(
        args, codes_N.data<uint8_t>(), largest_B.data<float>(), As(type, x_N));
  });
  CheckLaunched("values of a run in blocks");
}

void QuantizeBlocks(const Stream& stream, const Tensor& x_RC, bool power_of_two,
                    const Float8Matrix& as_it_is, const Float8Matrix& transposed) {
  const Float8Matrix& either = as_it_is.codes.empty() ? transposed : as_it_is;
  if (x_RC.numel() == 0 || either.codes.empty()) return;
  CHECK(as_it_is.codes.empty() || transposed.codes.empty() || as_it_is.format == transposed.format);
  BlocksArgs args;
  args.x = x_RC.raw();
  args.rows = x_RC.dim(0);
  args.columns = x_RC.dim(1);
  args.largest_code = Float8Max(either.format);
  args.format = InterpretationOf(either.format);
  args.power_of_two = power_of_two;
  args.whole_blocks = either.scaling == Float8Scaling::kBlocks;
  args.as_it_is = FormOf(as_it_is);
  args.transposed = FormOf(transposed);
  const dim3 blocks(Blocks(args.rows, kBlock), Blocks(args.columns, kBlock));
  WithType(x_RC.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    QuantizeBlock<T><<<blocks, kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("quantization of blocks");
}

MEGATRON_CUDA_KERNEL(AbsMaxOfBlocks);
MEGATRON_CUDA_KERNEL(EncodeFloat8Blocks);
MEGATRON_CUDA_KERNEL(DecodeFloat8Blocks);
MEGATRON_CUDA_KERNEL(QuantizeBlocks);

}  // namespace megatron::ops::cuda
