#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "megatron/ops/adamw_step.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/optimizer.h"

namespace megatron::ops::cuda {
namespace {

constexpr int kVectorFloats = kVector<float>;                 // elements of one thread
constexpr int64_t kTile = int64_t{kVectorFloats} * kThreads;  // elements of one block
// The most segments of one launch. Kernel parameters hold 32 KiB (from CUDA 12.1 and sm_70 on).
constexpr int kSegments = 512;

// The elements of a segment and two numbers whose meaning is the map's.
struct SegmentArgs {
  int64_t begin, end;
  int64_t first_tile;  // index of its first tile in the launch
  float a, b;

  // Tiles begin at multiples of a vector.
  __host__ __device__ int64_t FirstOfTiles() const { return begin / kVectorFloats * kVectorFloats; }
  int64_t Tiles() const { return (end - FirstOfTiles() + kTile - 1) / kTile; }
};

struct Segments {
  int count = 0;
  int64_t tiles = 0;
  SegmentArgs segments[kSegments];
};

struct Flat {
  const float* grad;
  void *m, *v;  // null if the map has no such state
  void* master;
};

// The remainder of a master weight.
struct Remainder {
  uint16_t bits;
};

// The code of an element in an 8-bit float.
template <typename Format>
struct Moment8 {
  uint8_t code;
};
// The fp32 number of a state, and the state of an fp32 number.
template <typename T>
struct StateOf {
  static __device__ float Load(T x) { return ToFloat(x); }
  static __device__ T Store(float x) { return FromFloat<T>(x); }
};
template <typename Format>
struct StateOf<Moment8<Format>> {
  static __device__ float Load(Moment8<Format> x) { return FromMoment8<Format>(x.code); }
  static __device__ Moment8<Format> Store(float x) { return {ToMoment8<Format>(x, 0)}; }
};

template <typename T>
constexpr MomentType kMomentType = sizeof(T) == 1   ? MomentType::kFloat8
                                   : sizeof(T) == 2 ? MomentType::kBFloat16
                                                    : MomentType::kFloat32;

// A map names the types in which its states and masters are kept, M, V and Master, and updates the
// states and a weight in fp32. A state that Update leaves is a value of its type.

// `a` of a segment is the factor that decays a weight, `b` the step size.
template <typename MType, typename VType, typename MasterType>
struct AdamWMap {
  using M = MType;
  using V = VType;
  using Master = MasterType;
  AdamWStep step;  // the two scalars of a segment are the segment's

  __device__ float Update(const SegmentArgs& segment, float grad, float w, float* m,
                          float* v) const {
    AdamWStep here = step;
    here.keep = segment.a;
    here.step_size = segment.b;
    if constexpr (std::is_same_v<M, float> && std::is_same_v<V, float>) {
      return AdamWElement(here, grad, w, m, v);
    } else {
      return AdamWElement(here, AdamWMoments{kMomentType<M>, kMomentType<V>}, grad, w, m, v);
    }
  }
};

// `a` of a segment is the decay, `b` the learning rate. m is the momentum buffer; without momentum
// it is a temporary.
struct SgdMap {
  using M = float;
  using V = float;
  using Master = float;
  float momentum, grad_scale;

  __device__ float Update(const SegmentArgs& segment, float grad, float w, float* m,
                          float* /*v*/) const {
    *m = fmaf(momentum, *m, fmaf(w, segment.a, grad * grad_scale));
    return fmaf(-segment.b, *m, w);
  }
};

// `a` of a segment is the factor that decays a weight, `b` the learning rate.
struct LionMap {
  using M = float;
  using V = float;
  using Master = float;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, grad_scale;

  __device__ float Update(const SegmentArgs& segment, float grad, float w, float* m,
                          float* /*v*/) const {
    const float g = grad * grad_scale;
    const float c = fmaf(beta1, *m, one_minus_beta1 * g);
    *m = fmaf(beta2, *m, one_minus_beta2 * g);
    const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
    return fmaf(-segment.b, sign, w * segment.a);
  }
};

__device__ uint16_t BitsOfWeight(__nv_bfloat16 weight) {
  uint16_t bits;
  memcpy(&bits, &weight, sizeof(bits));
  return bits;
}
__device__ __nv_bfloat16 WeightOfBits(uint16_t bits) {
  __nv_bfloat16 weight;
  memcpy(&weight, &bits, sizeof(weight));
  return weight;
}

// Masters [i, i + N), and back. Where they are fp32, `out` gets them rounded.
template <int N, typename Out>
__device__ Vector<float, N> LoadMasters(const float* masters, const Out* /*out*/, int64_t i) {
  return Load<float, N>(masters + i, 0);
}
template <int N, typename Out>
__device__ void StoreMasters(float* masters, Out* out, int64_t i, const Vector<float, N>& values) {
  Store<float, N>(masters + i, 0, values);
  if (out == nullptr) return;
  Vector<Out, N> rounded;
  for (int j = 0; j < N; ++j) rounded.values[j] = FromFloat<Out>(values.values[j]);
  Store<Out, N>(out + i, 0, rounded);
}
template <int N>
__device__ Vector<float, N> LoadMasters(const Remainder* remainders, const __nv_bfloat16* out,
                                        int64_t i) {
  const auto weights = Load<__nv_bfloat16, N>(out + i, 0);
  const auto rests = Load<Remainder, N>(remainders + i, 0);
  Vector<float, N> masters;
  for (int j = 0; j < N; ++j)
    masters.values[j] = MasterOf(BitsOfWeight(weights.values[j]), rests.values[j].bits);
  return masters;
}
template <int N>
__device__ void StoreMasters(Remainder* remainders, __nv_bfloat16* out, int64_t i,
                             const Vector<float, N>& values) {
  Vector<__nv_bfloat16, N> weights;
  Vector<Remainder, N> rests;
  for (int j = 0; j < N; ++j) {
    weights.values[j] = WeightOfBits(WeightOfMaster(values.values[j]));
    rests.values[j].bits = RemainderOfMaster(values.values[j]);
  }
  Store<__nv_bfloat16, N>(out + i, 0, weights);
  Store<Remainder, N>(remainders + i, 0, rests);
}

// Updates elements [i, i + N).
template <int N, typename Map, typename Out>
__device__ void UpdateAt(const SegmentArgs& segment, const Map& map, const Flat& flat, Out* out,
                         int64_t i) {
  using M = typename Map::M;
  using V = typename Map::V;
  auto* const masters = static_cast<typename Map::Master*>(flat.master);
  M* const all_m = static_cast<M*>(flat.m);
  V* const all_v = static_cast<V*>(flat.v);
  const auto grads = Load<float, N>(flat.grad + i, 0);
  Vector<float, N> weights = LoadMasters<N>(masters, out, i);
  Vector<M, N> ms = {};
  Vector<V, N> vs = {};
  if (all_m != nullptr) ms = Load<M, N>(all_m + i, 0);
  if (all_v != nullptr) vs = Load<V, N>(all_v + i, 0);
  for (int j = 0; j < N; ++j) {
    float m = StateOf<M>::Load(ms.values[j]), v = StateOf<V>::Load(vs.values[j]);
    weights.values[j] = map.Update(segment, grads.values[j], weights.values[j], &m, &v);
    ms.values[j] = StateOf<M>::Store(m);
    vs.values[j] = StateOf<V>::Store(v);
  }
  if (all_m != nullptr) Store<M, N>(all_m + i, 0, ms);
  if (all_v != nullptr) Store<V, N>(all_v + i, 0, vs);
  StoreMasters<N>(masters, out, i, weights);
}

template <typename Map, typename Out>
__global__ void __launch_bounds__(kThreads)
    UpdateTiles(const __grid_constant__ Segments segments, Map map, Flat flat, Out* out,
                bool aligned) {
  const SegmentArgs& segment = EntryOf(segments.segments, segments.count, blockIdx.x);
  const int64_t first = segment.FirstOfTiles() + (blockIdx.x - segment.first_tile) * kTile +
                        int64_t{threadIdx.x} * kVectorFloats;
  const int64_t last = first + kVectorFloats;
  if (aligned && segment.begin <= first && last <= segment.end) {
    UpdateAt<kVectorFloats>(segment, map, flat, out, first);
    return;
  }
  for (int64_t i = max(first, segment.begin); i < min(last, segment.end); ++i)
    UpdateAt<1>(segment, map, flat, out, i);
}

template <typename Map>
void LaunchUpdate(const Stream& stream, const Segments& segments, const Map& map, const Flat& flat,
                  const Tensor& out) {
  if (segments.tiles == 0) return;
  const bool aligned = IsAligned({flat.grad, flat.m, flat.v, flat.master, out.raw()});
  const auto launch = [&](auto* type) {
    UpdateTiles<<<Blocks(segments.tiles, 1), kThreads, 0, Handle(stream)>>>(segments, map, flat,
                                                                            As(type, out), aligned);
  };
  if constexpr (std::is_same_v<typename Map::Master, Remainder>) {
    launch(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    WithType(out.empty() ? DType::kFloat32 : out.dtype(), launch);
  }
  CheckLaunched("optimizer update");
}

// Calls launch(segments) for as many launches as are needed; args(segment) gives {a, b}. Adjacent
// segments with equal {a, b} become one.
template <typename Args, typename LaunchSegments>
void ForEachLaunch(absl::Span<const OptimizerSegment> all, Args args, LaunchSegments launch) {
  Segments batch;
  const auto finish = [&] {  // called when the end of the last segment is known
    if (batch.count > 0) batch.tiles += batch.segments[batch.count - 1].Tiles();
  };
  for (const OptimizerSegment& segment : all) {
    if (segment.begin == segment.end) continue;
    const auto [a, b] = args(segment);
    SegmentArgs* const last = batch.count == 0 ? nullptr : &batch.segments[batch.count - 1];
    if (last != nullptr && last->end == segment.begin && last->a == a && last->b == b) {
      last->end = segment.end;
      continue;
    }
    finish();
    if (batch.count == kSegments) {
      launch(batch);
      batch = Segments();
    }
    batch.segments[batch.count++] = {segment.begin, segment.end, batch.tiles, a, b};
  }
  finish();
  launch(batch);
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.raw()); }

constexpr int64_t kNormTile = 16384;

// partial[2 b] = the tile's sum of squares, partial[2 b + 1] = 1 if an element is not finite.
__global__ void __launch_bounds__(kThreads)
    SumTile(const float* x, int64_t count, float scale, bool aligned, float* partial) {
  __shared__ float shared[kWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kNormTile;
  float sum = 0, poison = 0;  // x - x is 0 or NaN
  const auto add = [&](float value) {
    const float scaled = value * scale;
    sum = fmaf(scaled, scaled, sum);
    poison += value - value;
  };
  const int64_t size = min(kNormTile, count - first), vectors = aligned ? size / kVectorFloats : 0;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto values = Load<float, kVectorFloats>(x + first, i);
    for (float value : values.values) add(value);
  }
  for (int64_t i = vectors * kVectorFloats + threadIdx.x; i < size; i += kThreads)
    add(x[first + i]);
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

__global__ void __launch_bounds__(kThreads)
    JoinMasterTiles(const __nv_bfloat16* weights, const Remainder* remainders, int64_t count,
                    float* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = MasterOf(BitsOfWeight(weights[i]), remainders[i].bits);
}

}  // namespace

void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N,
                 const Tensor& out_N) {
  const AdamWStep step = StepOf(options, OptimizerSegment());
  const Flat flat = {FloatsOf(grad_N), m_N.raw(), v_N.raw(), master_N.raw()};
  // The segments with one epsilon have launches of their own.
  const auto launch = [&](auto map) {
    std::vector<OptimizerSegment> left(segments.begin(), segments.end());
    while (!left.empty()) {
      const float factor = left.front().epsilon_factor;
      const auto others = std::stable_partition(
          left.begin(), left.end(),
          [factor](const OptimizerSegment& segment) { return segment.epsilon_factor == factor; });
      map.step.epsilon = StepOf(options, left.front()).epsilon;
      ForEachLaunch(
          absl::MakeConstSpan(left.data(), static_cast<size_t>(others - left.begin())),
          [&](const OptimizerSegment& segment) {
            const AdamWStep here = StepOf(options, segment);
            return std::pair<float, float>(here.keep, here.step_size);
          },
          [&](const Segments& batch) { LaunchUpdate(stream, batch, map, flat, out_N); });
      left.erase(left.begin(), others);
    }
  };
  const auto launch_with = [&](auto m_type, auto v_type) {
    using M = decltype(m_type);
    using V = decltype(v_type);
    if (master_N.dtype() == DType::kUInt16) return launch(AdamWMap<M, V, Remainder>{step});
    launch(AdamWMap<M, V, float>{step});
  };
  const auto launch_with_m = [&](auto type) {
    switch (v_N.dtype()) {
      case DType::kUInt8:
        return launch_with(type, Moment8<SecondMoment8>());
      case DType::kBFloat16:
        return launch_with(type, __nv_bfloat16());
      default:
        return launch_with(type, float());
    }
  };
  switch (m_N.dtype()) {
    case DType::kUInt8:
      return launch_with_m(Moment8<FirstMoment8>());
    case DType::kBFloat16:
      return launch_with_m(__nv_bfloat16());
    default:
      return launch_with_m(float());
  }
}

void JoinMasters(const Stream& stream, const Tensor& weight_N, const Tensor& remainder_N,
                 const Tensor& out_N) {
  const int64_t count = out_N.numel();
  if (count == 0) return;
  JoinMasterTiles<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
      static_cast<const __nv_bfloat16*>(weight_N.raw()),
      static_cast<const Remainder*>(remainder_N.raw()), count, FloatsOf(out_N));
  CheckLaunched("join of masters");
}

void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N) {
  const SgdMap map = {options.momentum, options.grad_scale};
  const Flat flat = {FloatsOf(grad_N), buffer_N.raw(), nullptr, FloatsOf(master_N)};
  ForEachLaunch(
      segments,
      [&](const OptimizerSegment& segment) {
        return std::pair<float, float>(segment.weight_decay, segment.lr);
      },
      [&](const Segments& batch) { LaunchUpdate(stream, batch, map, flat, out_N); });
}

void LionUpdate(const Stream& stream, const LionOptions& options,
                absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                const Tensor& m_N, const Tensor& master_N, const Tensor& out_N) {
  LionMap map;
  map.beta1 = static_cast<float>(options.beta1);
  map.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  map.beta2 = static_cast<float>(options.beta2);
  map.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  map.grad_scale = options.grad_scale;
  const Flat flat = {FloatsOf(grad_N), m_N.raw(), nullptr, FloatsOf(master_N)};
  ForEachLaunch(
      segments,
      [&](const OptimizerSegment& segment) {
        const double lr = segment.lr;
        return std::pair<float, float>(1 - lr * segment.weight_decay, lr);
      },
      [&](const Segments& batch) { LaunchUpdate(stream, batch, map, flat, out_N); });
}

void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2) {
  const int64_t tiles = (x_N.numel() + kNormTile - 1) / kNormTile;
  if (tiles == 0) return;
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(2 * tiles * static_cast<int64_t>(sizeof(float))));
  SumTile<<<Blocks(tiles, 1), kThreads, 0, Handle(stream)>>>(x_N.data<float>(), x_N.numel(), scale,
                                                             IsAligned({x_N.raw()}), partial);
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

MEGATRON_CUDA_KERNEL(AdamWUpdate);
MEGATRON_CUDA_KERNEL(JoinMasters);
MEGATRON_CUDA_KERNEL(SgdUpdate);
MEGATRON_CUDA_KERNEL(LionUpdate);
MEGATRON_CUDA_KERNEL(SumOfSquares);
MEGATRON_CUDA_KERNEL(CountZeros);

}  // namespace megatron::ops::cuda
