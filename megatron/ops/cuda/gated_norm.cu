// A warp has a part of a row or, for sums over whole rows, a row. Backward finds the statistics of
// all parts first, then sums up the gradient of gamma, and writes those of x and z last: that of x
// may be the memory of y's.
#include "megatron/ops/cuda/activation.cuh"
#include "megatron/ops/cuda/column_sums.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/token_rows.cuh"
#include "megatron/ops/gated_norm.h"

namespace megatron::ops::cuda {
namespace {

struct NormArgs {
  int64_t tokens = 0, parts = 0, of_group = 1;  // parts of a row and of a group
  int64_t width = 0, columns = 0;  // sizes of a part, and of what is normalized together
  float epsilon = 0;
  bool norm_before_gate = false, shares_gamma = false;
  TokenRows x, z, y, dy, dx, dz;
  const void* gamma = nullptr;
  // The sums over whole rows; null where parts are normalized by themselves.
  const float *squares = nullptr, *products = nullptr;
  float* statistics = nullptr;  // [tokens, parts, 2]: the reciprocal of the rms, and `along`
};

// A part of a token's row.
template <typename T>
struct Part {
  const NormArgs& args;
  const int64_t token, part;
  const T *x, *z, *gamma;

  __device__ Part(const NormArgs& all, int64_t row_token, int64_t row_part)
      : args(all),
        token(row_token),
        part(row_part),
        x(Row(all.x)),
        z(Row(all.z)),
        gamma(static_cast<const T*>(all.gamma) + (all.shares_gamma ? 0 : part * all.width)) {}

  __device__ T* Row(const TokenRows& rows) const {
    return rows.Row<T>(token, part / args.of_group, part % args.of_group);
  }
  __device__ float Gate(int64_t c) const { return Activate<Activation::kSilu, T>(ToFloat(z[c])); }
  // What is normalized.
  __device__ float Normed(int64_t c) const {
    return args.norm_before_gate ? ToFloat(x[c]) : ToFloat(x[c]) * Gate(c);
  }
  // The gradient behind the norm and gamma.
  __device__ float Behind(const T* dy, int64_t c) const {
    return args.norm_before_gate ? ToFloat(dy[c]) * Gate(c) : ToFloat(dy[c]);
  }
  // Return the part's sums to every lane.
  __device__ float Squares() const {
    float sum = 0;
    for (int64_t c = threadIdx.x % kWarp; c < args.width; c += kWarp) {
      const float value = Normed(c);
      sum = fmaf(value, value, sum);
    }
    return WarpSum(sum);
  }
  __device__ float Products() const {
    const T* const dy = Row(args.dy);
    float sum = 0;
    for (int64_t c = threadIdx.x % kWarp; c < args.width; c += kWarp)
      sum = fmaf(Behind(dy, c) * ToFloat(gamma[c]), Normed(c), sum);
    return WarpSum(sum);
  }
  // Returns the reciprocal of the rms to every lane.
  __device__ float ReciprocalRms() const {
    const float squares = args.squares != nullptr ? args.squares[token] : Squares();
    return 1.0f / sqrtf(squares / static_cast<float>(args.columns) + args.epsilon);
  }
  __device__ float* Statistics() const { return args.statistics + 2 * (token * args.parts + part); }
};

// The warp's part in the order of all rows' parts.
__device__ int64_t PartOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

// The sums over the parts of each row, of one of the two kinds.
template <typename T, bool of_gradients>
__global__ void __launch_bounds__(kThreads) SumsKernel(NormArgs args, float* sums) {
  const int64_t token = PartOfWarp();
  if (token >= args.tokens) return;
  float sum = 0;
  for (int64_t i = 0; i < args.parts; ++i) {
    const Part<T> part(args, token, i);
    sum += of_gradients ? part.Products() : part.Squares();
  }
  if (threadIdx.x % kWarp == 0) sums[token] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ForwardKernel(NormArgs args) {
  const int64_t i = PartOfWarp();
  if (i >= args.tokens * args.parts) return;
  const Part<T> part(args, i / args.parts, i % args.parts);
  const float rms = part.ReciprocalRms();
  T* const y = part.Row(args.y);
  for (int64_t c = threadIdx.x % kWarp; c < args.width; c += kWarp) {
    const float normed = part.Normed(c) * rms * ToFloat(part.gamma[c]);
    y[c] = FromFloat<T>(args.norm_before_gate ? normed * part.Gate(c) : normed);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) StatisticsKernel(NormArgs args) {
  const int64_t i = PartOfWarp();
  if (i >= args.tokens * args.parts) return;
  const Part<T> part(args, i / args.parts, i % args.parts);
  const float rms = part.ReciprocalRms();
  // The gradient of what is normalized, times its value over the rms, on average.
  const float products = args.products != nullptr ? args.products[part.token] : part.Products();
  const float along = rms * products / static_cast<float>(args.columns);
  if (threadIdx.x % kWarp > 0) return;
  part.Statistics()[0] = rms;
  part.Statistics()[1] = along;
}

// The gradient of gamma: partial [slices, parts x width], or [slices, width] where parts share it.
template <typename T>
__global__ void __launch_bounds__(kThreads) GammaKernel(NormArgs args, float* partial) {
  __shared__ SumsOfWarps<1> sums;
  const int64_t rows = args.shares_gamma ? args.tokens * args.parts : args.tokens;
  const int64_t columns = args.shares_gamma ? args.width : args.parts * args.width;
  SumSlice<float, 1>(rows, columns, sums, partial, [&](int64_t row, int64_t column) {
    const int64_t token = args.shares_gamma ? row / args.parts : row;
    const Part<T> part(args, token, args.shares_gamma ? row % args.parts : column / args.width);
    const int64_t c = column % args.width;
    return Vector<float, 1>{
        {part.Behind(part.Row(args.dy), c) * part.Normed(c) * part.Statistics()[0]}};
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) InputsKernel(NormArgs args) {
  const int64_t i = PartOfWarp();
  if (i >= args.tokens * args.parts) return;
  const Part<T> part(args, i / args.parts, i % args.parts);
  const float rms = part.Statistics()[0], along = part.Statistics()[1];
  const T* const dy = part.Row(args.dy);
  T *const dx = part.Row(args.dx), *const dz = part.Row(args.dz);
  for (int64_t c = threadIdx.x % kWarp; c < args.width; c += kWarp) {
    const float gradient = ToFloat(dy[c]), value = ToFloat(part.x[c]);
    const float normalized = part.Normed(c) * rms, scale = ToFloat(part.gamma[c]);
    const float of_normed = rms * (part.Behind(dy, c) * scale - normalized * along);
    const float slope = ActivationSlope<Activation::kSilu, T>(ToFloat(part.z[c]));
    if (args.norm_before_gate) {
      dx[c] = FromFloat<T>(of_normed);
      dz[c] = FromFloat<T>(gradient * normalized * scale * slope);
    } else {
      dx[c] = FromFloat<T>(of_normed * part.Gate(c));
      dz[c] = FromFloat<T>(of_normed * value * slope);
    }
  }
}

NormArgs ArgsOf(const GatedNorm& norm, const GatedNormInputs& in) {
  const Tensor& x = in.x_TGS;
  NormArgs args;
  args.tokens = x.dim(0);
  args.of_group = x.rank() == 4 ? x.dim(2) : 1;
  args.parts = x.dim(1) * args.of_group;
  args.width = x.dim(-1);
  const bool by_parts = norm.squares_T.empty();
  args.columns = by_parts ? args.width : norm.columns;
  if (!by_parts) args.squares = static_cast<const float*>(norm.squares_T.raw());
  if (!norm.products_T.empty()) args.products = static_cast<const float*>(norm.products_T.raw());
  args.epsilon = norm.epsilon;
  args.norm_before_gate = norm.norm_before_gate;
  args.shares_gamma = in.gamma_GS.dim(0) == 1;
  args.x = RowsOf(x);
  args.z = RowsOf(in.z_TGS);
  args.gamma = in.gamma_GS.raw();
  return args;
}

template <bool of_gradients>
void SumParts(const Stream& stream, const NormArgs& args, DType dtype, const Tensor& sums_T) {
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    SumsKernel<T, of_gradients><<<Blocks(args.tokens, kWarps), kThreads, 0, Handle(stream)>>>(
        args, static_cast<float*>(sums_T.raw()));
  });
  CheckLaunched("sums of gated norms");
}

}  // namespace

void GatedNormSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                   const Tensor& sums_T) {
  if (in.x_TGS.numel() == 0) return;
  SumParts</*of_gradients=*/false>(stream, ArgsOf(norm, in), in.x_TGS.dtype(), sums_T);
}

void GatedNormGradientSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                           const Tensor& dy_TGS, const Tensor& sums_T) {
  if (in.x_TGS.numel() == 0) return;
  NormArgs args = ArgsOf(norm, in);
  args.dy = RowsOf(dy_TGS);
  SumParts</*of_gradients=*/true>(stream, args, in.x_TGS.dtype(), sums_T);
}

void GatedNormForward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                      const Tensor& y_TGS) {
  if (in.x_TGS.numel() == 0) return;
  NormArgs args = ArgsOf(norm, in);
  args.y = RowsOf(y_TGS);
  WithType(in.x_TGS.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ForwardKernel<T>
        <<<Blocks(args.tokens * args.parts, kWarps), kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("gated norm");
}

void GatedNormBackward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                       const Tensor& dy_TGS, const GatedNormInputs& gradients) {
  if (in.x_TGS.numel() == 0) return;
  NormArgs args = ArgsOf(norm, in);
  args.dy = RowsOf(dy_TGS);
  args.dx = RowsOf(gradients.x_TGS);
  args.dz = RowsOf(gradients.z_TGS);
  const int64_t parts = args.tokens * args.parts, columns = in.gamma_GS.numel();
  const int64_t rows = args.shares_gamma ? parts : args.tokens, slices = SlicesOf(rows);
  args.statistics = static_cast<float*>(stream.cuda()->Workspace(
      (2 * parts + slices * columns) * static_cast<int64_t>(sizeof(float))));
  float* const partial = args.statistics + 2 * parts;
  WithType(in.x_TGS.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    StatisticsKernel<T><<<Blocks(parts, kWarps), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("statistics of gated norms");
    GammaKernel<T><<<GridOfSlices(rows, columns, 1), kThreads, 0, Handle(stream)>>>(args, partial);
    CheckLaunched("gamma's gradient of gated norms");
    InputsKernel<T><<<Blocks(parts, kWarps), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("input gradients of gated norms");
  });
  AddSlices(partial, slices, columns, {static_cast<float*>(gradients.gamma_GS.raw())},
            Handle(stream));
}

MEGATRON_CUDA_KERNEL(GatedNormSums);
MEGATRON_CUDA_KERNEL(GatedNormGradientSums);
MEGATRON_CUDA_KERNEL(GatedNormForward);
MEGATRON_CUDA_KERNEL(GatedNormBackward);

}  // namespace megatron::ops::cuda
