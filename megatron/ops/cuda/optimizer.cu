#include <algorithm>
#include <cmath>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernels.h"

namespace megatron::ops::cuda {
namespace {

constexpr int64_t kTile = 4 * kThreads;  // elements of one block
// Of one launch: kernel parameters hold 4 KiB.
constexpr int kSegments = 64;

// What differs between segments, as a kernel wants it.
struct SegmentArgs {
  int64_t begin, end;
  int64_t first_tile;  // of this launch's
  float a, b;
};

struct Segments {
  int count = 0;
  int64_t tiles = 0;
  SegmentArgs segments[kSegments];

  __device__ const SegmentArgs& Of(int64_t tile) const {
    int low = 0, high = count;  // the last that begins at or before the tile
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (segments[middle].first_tile <= tile ? low : high) = middle;
    }
    return segments[low];
  }
};

struct Flat {
  const float* grad;
  float *m, *v, *master;
};

// `a` of a segment is what is kept of a weight, `b` the step size.
struct AdamWMap {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, grad_scale, inverse_sqrt_correction2,
      epsilon;

  __device__ float Update(const Flat& at, int64_t i, const SegmentArgs& segment) const {
    const float g = at.grad[i] * grad_scale;
    const float m = fmaf(beta1, at.m[i], one_minus_beta1 * g);
    const float v = fmaf(beta2, at.v[i], one_minus_beta2 * g * g);
    at.m[i] = m;
    at.v[i] = v;
    const float denominator = fmaf(sqrtf(v), inverse_sqrt_correction2, epsilon);
    return fmaf(-segment.b, m / denominator, at.master[i] * segment.a);
  }
};

// `a` is the decay, `b` the learning rate; m is the momentum's buffer or none.
struct SgdMap {
  float momentum, grad_scale;

  __device__ float Update(const Flat& at, int64_t i, const SegmentArgs& segment) const {
    const float w = at.master[i];
    float update = fmaf(w, segment.a, at.grad[i] * grad_scale);
    if (at.m != nullptr) {
      update = fmaf(momentum, at.m[i], update);
      at.m[i] = update;
    }
    return fmaf(-segment.b, update, w);
  }
};

template <typename Map, typename Out>
__global__ void __launch_bounds__(kThreads)
    UpdateTiles(Segments segments, Map map, Flat flat, Out* out) {
  const SegmentArgs segment = segments.Of(blockIdx.x);
  const int64_t first = segment.begin + (blockIdx.x - segment.first_tile) * kTile;
  for (int64_t i = first + threadIdx.x; i < min(first + kTile, segment.end); i += kThreads) {
    const float w = map.Update(flat, i, segment);
    flat.master[i] = w;
    if (out != nullptr) out[i] = FromFloat<Out>(w);
  }
}

template <typename Map>
void LaunchUpdate(const Stream& stream, const Segments& segments, const Map& map, const Flat& flat,
                  const Tensor& out) {
  if (segments.tiles == 0) return;
  WithType(out.empty() ? DType::kFloat32 : out.dtype(), [&](auto* type) {
    UpdateTiles<<<Blocks(segments.tiles, 1), kThreads, 0, Handle(stream)>>>(segments, map, flat,
                                                                            As(type, out));
  });
  CheckLaunched("optimizer update");
}

// Calls launch(segments) for as many launches as they need; args(segment) gives {a, b}.
template <typename Args, typename LaunchSegments>
void ForEachLaunch(absl::Span<const OptimizerSegment> all, Args args, LaunchSegments launch) {
  Segments batch;
  for (const OptimizerSegment& segment : all) {
    if (segment.begin == segment.end) continue;
    const auto [a, b] = args(segment);
    batch.segments[batch.count++] = {segment.begin, segment.end, batch.tiles, a, b};
    batch.tiles += (segment.end - segment.begin + kTile - 1) / kTile;
    if (batch.count < kSegments) continue;
    launch(batch);
    batch = Segments();
  }
  launch(batch);
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.raw()); }

constexpr int64_t kNormTile = 16384;

// partial[2 b] = the tile's sum of squares, partial[2 b + 1] = 1 if an element is not finite.
__global__ void __launch_bounds__(kThreads)
    SumTile(const float* x, int64_t count, float scale, float* partial) {
  __shared__ float shared[kWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kNormTile;
  float sum = 0, poison = 0;  // x - x is 0 or NaN
  for (int64_t i = first + threadIdx.x; i < min(first + kNormTile, count); i += kThreads) {
    const float scaled = x[i] * scale;
    sum = fmaf(scaled, scaled, sum);
    poison += x[i] - x[i];
  }
  sum = BlockSum(sum, shared);
  poison = BlockSum(poison, shared);
  if (threadIdx.x != 0) return;
  partial[2 * blockIdx.x] = sum;
  partial[2 * blockIdx.x + 1] = poison == 0 ? 0 : 1;
}

__global__ void __launch_bounds__(kThreads)
    SumTiles(const float* partial, int64_t tiles, float* out) {
  __shared__ double shared[kWarps];
  double sum = 0, infinite = 0;
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) {
    sum += partial[2 * tile];
    infinite += partial[2 * tile + 1];
  }
  sum = BlockSum(sum, shared);
  infinite = BlockSum(infinite, shared);
  if (threadIdx.x != 0) return;
  out[0] = static_cast<float>(out[0] + sum);
  if (infinite != 0) out[1] = 1;
}

// Every block leaves its count in partial[block].
__global__ void __launch_bounds__(kThreads)
    CountZeroTile(const float* x, int64_t count, int64_t* partial) {
  __shared__ int64_t shared[kWarps];
  const int64_t first = int64_t{blockIdx.x} * kNormTile;
  int64_t zeros = 0;
  for (int64_t i = first + threadIdx.x; i < min(first + kNormTile, count); i += kThreads) {
    zeros += x[i] == 0 ? 1 : 0;
  }
  zeros = BlockSum(zeros, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = zeros;
}

__global__ void __launch_bounds__(kThreads)
    AddCounts(const int64_t* partial, int64_t tiles, int64_t* out) {
  __shared__ int64_t shared[kWarps];
  int64_t sum = 0;
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) sum += partial[tile];
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) *out += sum;
}

}  // namespace

void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N,
                 const Tensor& out_N) {
  const double step = static_cast<double>(options.step);
  const double correction1 = 1 - std::pow(options.beta1, step);
  AdamWMap map;
  map.beta1 = static_cast<float>(options.beta1);
  map.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  map.beta2 = static_cast<float>(options.beta2);
  map.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  map.grad_scale = options.grad_scale;
  map.inverse_sqrt_correction2 =
      static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, step)));
  map.epsilon = options.epsilon;
  const Flat flat = {FloatsOf(grad_N), FloatsOf(m_N), FloatsOf(v_N), FloatsOf(master_N)};
  ForEachLaunch(
      segments,
      [&](const OptimizerSegment& segment) {
        const double lr = segment.lr;
        return std::pair<float, float>(1 - lr * segment.weight_decay, lr / correction1);
      },
      [&](const Segments& batch) { LaunchUpdate(stream, batch, map, flat, out_N); });
}

void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N) {
  const SgdMap map = {options.momentum, options.grad_scale};
  const Flat flat = {FloatsOf(grad_N), FloatsOf(buffer_N), nullptr, FloatsOf(master_N)};
  ForEachLaunch(
      segments,
      [&](const OptimizerSegment& segment) {
        return std::pair<float, float>(segment.weight_decay, segment.lr);
      },
      [&](const Segments& batch) { LaunchUpdate(stream, batch, map, flat, out_N); });
}

void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2) {
  const int64_t tiles = (x_N.numel() + kNormTile - 1) / kNormTile;
  if (tiles == 0) return;
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(2 * tiles * static_cast<int64_t>(sizeof(float))));
  SumTile<<<Blocks(tiles, 1), kThreads, 0, Handle(stream)>>>(x_N.data<float>(), x_N.numel(), scale,
                                                             partial);
  SumTiles<<<1, kThreads, 0, Handle(stream)>>>(partial, tiles, out_2.data<float>());
  CheckLaunched("sum of squares");
}

void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1) {
  const int64_t tiles = (x_N.numel() + kNormTile - 1) / kNormTile;
  if (tiles == 0) return;
  int64_t* const partial = static_cast<int64_t*>(
      stream.cuda()->Workspace(tiles * static_cast<int64_t>(sizeof(int64_t))));
  CountZeroTile<<<Blocks(tiles, 1), kThreads, 0, Handle(stream)>>>(x_N.data<float>(), x_N.numel(),
                                                                   partial);
  AddCounts<<<1, kThreads, 0, Handle(stream)>>>(partial, tiles, out_1.data<int64_t>());
  CheckLaunched("count of zeros");
}

}  // namespace megatron::ops::cuda
