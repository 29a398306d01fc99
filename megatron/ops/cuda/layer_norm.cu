#include <algorithm>
#include <type_traits>

#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/layer_norm.cuh"
#include "megatron/ops/cuda/layer_norm.h"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda {
namespace {

// The number of multiprocessors of a Hopper GPU, which share the rows of backward: each block sums
// a part of the gradients of the parameters. It is a constant: the order of the sum must not depend
// on the device.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kMostSlices = 3 * kMultiprocessors;

// The widest row, in vectors, that 128 threads hold in registers. They have registers for the sums
// of dx, too, and shared memory for the next row.
constexpr int64_t kMostVectorsOf128 = 512;

// Number of blocks with rows in registers that fit on a multiprocessor.
constexpr int BlocksAtOnce(int threads) { return threads == 128 ? 3 : 1; }

template <typename T, int N, int kTeam>
__global__ void __launch_bounds__(kThreads) Forward(LayerNormForwardArgs args) {
  __shared__ float partial[kWarps];
  const int64_t row = TeamRow<kTeam>();
  if (row >= args.x_rows.rows()) return;
  const T* x = static_cast<const T*>(args.x_TH) + Offset(args.x_rows, row);
  NormalizeRow<T, N, kTeam>(args, row, partial, [&](int64_t i) { return Load<T, N>(x, i); });
}

// Backward of one row: dx = rstd * (g - mean(g) - n * mean(g n)) + dresidual, with g = dy * scale
// and n = (x - mean) * rstd; RMSNorm has no mean(g).
//
// Addresses are computed where they are needed, since registers hold the row. kFlat: all tensors
// have one leading dim, so there are no divisions.
template <typename T, bool kFlat>
struct BackwardRow {
  const LayerNormBackwardArgs& args;
  const int64_t row;
  const float mean, rstd;

  __device__ BackwardRow(const LayerNormBackwardArgs& at, int64_t r)
      : args(at), row(r), mean(at.shape.rms ? 0 : at.mean_T[r]), rstd(at.rstd_T[r]) {}

  __device__ int64_t At(const RowLayout& layout) const {
    return kFlat ? row * layout.strides[2] : Offset(layout, row);
  }
  template <int N>
  __device__ Vector<T, N> Dy(int64_t i) const {
    return Load<T, N>(static_cast<const T*>(args.dy_TH) + At(args.dy_rows), i);
  }
  template <int N>
  __device__ Vector<T, N> X(int64_t i) const {
    return Load<T, N>(static_cast<const T*>(args.x_TH) + At(args.x_rows), i);
  }
  template <int N>
  __device__ Vector<T, N> Gamma(int64_t i) const {
    return Load<T, N>(static_cast<const T*>(args.gamma_H), i);
  }

  __device__ float Normalized(T value) const { return (ToFloat(value) - mean) * rstd; }
  __device__ float Scaled(T gradient, T weight) const {
    return ToFloat(gradient) * NormScale(ToFloat(weight), args.shape.zero_centered_gamma);
  }
  // Zeros if there is none.
  template <int N>
  __device__ Vector<T, N> Dresidual(int64_t i) const {
    if (args.dresidual_TH == nullptr) return {};
    return Load<T, N>(static_cast<const T*>(args.dresidual_TH) + At(args.dresidual_rows), i);
  }
  // Writes a vector of dx and returns it. `out` is that of dresidual.
  template <int N>
  __device__ Vector<T, N> Finish(int64_t i, const Vector<T, N>& dys, const Vector<T, N>& xs,
                                 Vector<T, N> out, float mean_g, float mean_gn) const {
    const auto gammas = Gamma<N>(i);
    for (int j = 0; j < N; ++j) {
      const float g = Scaled(dys.values[j], gammas.values[j]);
      const float through = rstd * (g - mean_g - Normalized(xs.values[j]) * mean_gn);
      out.values[j] = FromFloat<T>(through + ToFloat(out.values[j]));
    }
    Store<T, N>(static_cast<T*>(args.dx_TH) + At(args.dx_rows), i, out);
    return out;
  }
};

struct RowSums {
  float g, gn;
};

// The means over a row of `width` elements of the threads' sums. All teams of a block call this
// together, but a warp that is a team waits for nobody.
template <int kTeam>
__device__ RowSums TeamMeans(RowSums sums, float width, RowSums* partial) {
  sums = {WarpSum(sums.g), WarpSum(sums.gn)};
  if (kTeam > kWarp) {
    constexpr int kTeamWarps = kTeam / kWarp;
    const int warp = threadIdx.x / kWarp;
    __syncthreads();  // the previous contents have been read
    if (threadIdx.x % kWarp == 0) partial[warp] = sums;
    __syncthreads();
    sums = {0, 0};
    for (int w = 0; w < kTeamWarps; ++w) {
      const RowSums& other = partial[warp / kTeamWarps * kTeamWarps + w];
      sums.g += other.g;
      sums.gn += other.gn;
    }
  }
  return {sums.g / width, sums.gn / width};
}

// The block's sums of the parameters' gradients.
struct Slice {
  float *dgamma, *dbeta, *dbias;

  __device__ explicit Slice(const LayerNormBackwardArgs& args)
      : dgamma(args.workspace + blockIdx.x * args.shape.hidden),
        dbeta(dgamma + gridDim.x * args.shape.hidden),
        dbias(dbeta + gridDim.x * args.shape.hidden) {}
};

// The sums over teams of their vectors of a parameter's gradient, in order.
template <int kBlock, int kTeam, int K, int N>
__device__ void AddTeams(const float (&sums)[K][N], int vectors, float* out) {
  constexpr int kTeams = kBlock / kTeam;
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  if constexpr (kTeams == 1) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = member + k * kTeam;
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (i < vectors) out[i * N + j] = sums[k][j];
    }
  } else {
    // Element (k, j) of all members is contiguous, so that neighbouring threads access neighbouring
    // places.
    __shared__ float total[K * N * kTeam];
    for (int t = 0; t < kTeams; ++t) {
      __syncthreads();
      if (t != team) continue;
#pragma unroll
      for (int e = 0; e < K * N; ++e) {
        float& place = total[e * kTeam + member];
        place = sums[e / N][e % N] + (t == 0 ? 0.0f : place);
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < vectors * N; c += kBlock) {
      const int i = c / N;
      out[c] = total[(i / kTeam * N + c % N) * kTeam + i % kTeam];
    }
    __syncthreads();  // all reads come before the next writes
  }
}

// The vectors of a thread's next row, on their way to shared memory while the thread computes the
// row before. It reads its own copies alone, and so waits for no other thread. Requests alternate:
// dy and x, then the residual's gradient, which is needed later.
template <typename T, int kBlock, int kTeam, int K>
class NextRow {
 public:
  static constexpr int N = kVector<T>, kVectors = 3 * K * kBlock;

  __device__ NextRow(const LayerNormBackwardArgs& args, Vector<T, N>* memory)
      : args_(args), memory_(memory) {}

  __device__ void AskForDyAndX(int64_t row) {
    Ask(0, row, args_.dy_TH, args_.dy_rows);
    Ask(1, row, args_.x_TH, args_.x_rows);
    CommitCopies();
  }
  __device__ void AskForDresidual(int64_t row) {
    if (args_.dresidual_TH != nullptr) Ask(2, row, args_.dresidual_TH, args_.dresidual_rows);
    CommitCopies();
  }
  // Waits for all but the last request.
  __device__ void Wait() const { WaitForCopies<1>(); }

  __device__ const Vector<T, N>& Dy(int k) const { return *Place(0, k); }
  __device__ const Vector<T, N>& X(int k) const { return *Place(1, k); }
  __device__ Vector<T, N> Dresidual(int k) const {
    if (args_.dresidual_TH == nullptr) return {};
    return *Place(2, k);
  }

 private:
  __device__ Vector<T, N>* Place(int tensor, int k) const {
    return memory_ + (tensor * K + k) * kBlock + threadIdx.x;
  }
  __device__ void Ask(int tensor, int64_t row, const void* from, const RowLayout& rows) {
    if (row >= args_.x_rows.rows()) return;
    const T* const begin = static_cast<const T*>(from) + row * rows.strides[2];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t column = (threadIdx.x % kTeam + k * kTeam) * N;
      if (column < args_.shape.hidden) CopyAsync(Place(tensor, k), begin + column, /*there=*/true);
    }
  }

  const LayerNormBackwardArgs& args_;
  Vector<T, N>* const memory_;
};

// A vector that stays in registers, its elements two by two (kPairs) or as the compiler likes. It
// gives each element of bf16 a register of its own.
template <typename T, bool kPairs>
class HeldVector {
 public:
  static constexpr int N = kVector<T>;

  __device__ HeldVector() : held_{} {}
  __device__ explicit HeldVector(const Vector<T, N>& vector) {
    memcpy(&held_, &vector, sizeof(held_));
  }
  __device__ Vector<T, N> Get() const {
    Vector<T, N> vector;
    memcpy(&vector, &held_, sizeof(vector));
    return vector;
  }

 private:
  std::conditional_t<kPairs, Vector<uint32_t, kVectorBytes / 4>, Vector<T, N>> held_;
};

// A thread's sums over its rows. It has the same columns in all of them.
template <int K, int N>
struct ColumnsOfThread {
  float dgamma[K][N] = {}, dbeta[K][N] = {}, dbias[K][N] = {};

  // Adds a vector of a row to the gradients of the parameters, and returns its part of the row's
  // sums.
  template <typename T, bool kFlat>
  __device__ RowSums Add(int k, const BackwardRow<T, kFlat>& row, const Vector<T, N>& gammas,
                         const Vector<T, N>& dys, const Vector<T, N>& xs, RowSums sums) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = row.Scaled(dys.values[j], gammas.values[j]);
      const float n = row.Normalized(xs.values[j]);
      sums.g += g;
      sums.gn = fmaf(g, n, sums.gn);
      dgamma[k][j] = fmaf(ToFloat(dys.values[j]), n, dgamma[k][j]);
      dbeta[k][j] += ToFloat(dys.values[j]);
    }
    return sums;
  }
  template <typename T>
  __device__ void AddDx(int k, const Vector<T, N>& dxs) {
#pragma unroll
    for (int j = 0; j < N; ++j) dbias[k][j] += ToFloat(dxs.values[j]);
  }
  // Writes the block's slice of the sums.
  template <int kBlock, int kTeam, bool kSumsDx>
  __device__ void Write(const LayerNormBackwardArgs& args, int vectors) const {
    if (args.workspace == nullptr) return;
    const Slice slice(args);
    if (args.dgamma_H != nullptr) AddTeams<kBlock, kTeam, K, N>(dgamma, vectors, slice.dgamma);
    if (args.dbeta_H != nullptr) AddTeams<kBlock, kTeam, K, N>(dbeta, vectors, slice.dbeta);
    if (kSumsDx && args.dbias_H != nullptr)
      AddTeams<kBlock, kTeam, K, N>(dbias, vectors, slice.dbias);
  }
};

// The whole backward pass at once. A team of kTeam threads holds a row in registers, K vectors per
// thread, and its sums over rows.
template <typename T, int kBlock, int kTeam, int K, bool kFlat>
__global__ void __launch_bounds__(kBlock, BlocksAtOnce(kBlock))
    Backward(LayerNormBackwardArgs args) {
  constexpr int N = kVector<T>, kTeams = kBlock / kTeam;
  constexpr bool kAhead = kFlat && kBlock == 128;
  using Next = NextRow<T, kBlock, kTeam, K>;
  using Held = HeldVector<T, std::is_same_v<T, __nv_bfloat16> || kBlock == 512>;
  __shared__ RowSums partial[kBlock / kWarp];
  __shared__ Vector<T, N> memory[kAhead ? Next::kVectors : 1];
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  const int64_t rows = args.x_rows.rows(), stride = static_cast<int64_t>(gridDim.x) * kTeams;
  const int vectors = static_cast<int>(args.shape.hidden / N);
  const float width = static_cast<float>(args.shape.hidden);
  ColumnsOfThread<K, N> columns;
  Next next(args, memory);
  int64_t first = static_cast<int64_t>(blockIdx.x) * kTeams;
  if constexpr (kAhead) {
    next.AskForDyAndX(first + team);
    next.AskForDresidual(first + team);
  }
  for (; first < rows; first += stride) {
    // A team without a row takes part in the barriers of its block.
    const int here = first + team < rows ? vectors : 0;
    const BackwardRow<T, kFlat> row(args, min(first + team, rows - 1));
    Held dys[K], xs[K];
    RowSums sums = {0, 0};
    if constexpr (kAhead) next.Wait();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = member + k * kTeam;
      if (i >= here) continue;
      dys[k] = Held(kAhead ? next.Dy(k) : row.template Dy<N>(i));
      xs[k] = Held(kAhead ? next.X(k) : row.template X<N>(i));
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = member + k * kTeam;
      if (i >= here) continue;
      sums = columns.Add(k, row, row.template Gamma<N>(i), dys[k].Get(), xs[k].Get(), sums);
    }
    if constexpr (kAhead) next.AskForDyAndX(first + team + stride);
    const RowSums means = TeamMeans<kTeam>(sums, width, partial);
    if constexpr (kAhead) next.Wait();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = member + k * kTeam;
      if (i >= here) continue;
      const auto around = kAhead ? next.Dresidual(k) : row.template Dresidual<N>(i);
      const auto dxs =
          row.Finish(i, dys[k].Get(), xs[k].Get(), around, args.shape.rms ? 0 : means.g, means.gn);
      if constexpr (kAhead) columns.AddDx(k, dxs);
    }
    if constexpr (kAhead) next.AskForDresidual(first + team + stride);
  }
  if constexpr (kAhead) WaitForCopies<0>();
  columns.template Write<kBlock, kTeam, kAhead>(args, vectors);
}

// Sums rows in the order in which Backward sums those of dx.
template <typename T, int kTeam, int K>
__global__ void __launch_bounds__(128)
    SumRows(const T* x, int64_t rows, int64_t hidden, float* partial) {
  constexpr int kBlock = 128, N = kVector<T>, kTeams = kBlock / kTeam;
  const int member = threadIdx.x % kTeam, vectors = static_cast<int>(hidden / N);
  float sums[K][N] = {};
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kTeams + threadIdx.x / kTeam; row < rows;
       row += static_cast<int64_t>(gridDim.x) * kTeams) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = member + k * kTeam;
      if (i >= vectors) continue;
      const auto values = Load<T, N>(x + row * hidden, i);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[k][j] += ToFloat(values.values[j]);
    }
  }
  AddTeams<kBlock, kTeam, K, N>(sums, vectors, partial + blockIdx.x * hidden);
}

// The backward pass of rows that no team can hold: each block has one row, which it reads twice,
// and the gradients of the parameters add up in the workspace. Each element is read before its
// place in dx is written.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) BackwardOfWideRows(LayerNormBackwardArgs args) {
  __shared__ RowSums partial[kWarps];
  const int64_t vectors = args.shape.hidden / N, rows = args.x_rows.rows();
  const float width = static_cast<float>(args.shape.hidden);
  const Slice slice(args);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const BackwardRow<T, /*kFlat=*/false> row(args, r);
    RowSums sums = {0, 0};
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
      const auto dys = row.template Dy<N>(i), xs = row.template X<N>(i),
                 gammas = row.template Gamma<N>(i);
      for (int j = 0; j < N; ++j) {
        const float g = row.Scaled(dys.values[j], gammas.values[j]);
        const float n = row.Normalized(xs.values[j]), d = ToFloat(dys.values[j]);
        sums.g += g;
        sums.gn = fmaf(g, n, sums.gn);
        if (args.workspace == nullptr) continue;
        float &dgamma = slice.dgamma[i * N + j], &dbeta = slice.dbeta[i * N + j];
        const bool is_first = r == blockIdx.x;
        dgamma = fmaf(d, n, is_first ? 0.0f : dgamma);
        dbeta = d + (is_first ? 0.0f : dbeta);
      }
    }
    const RowSums means = TeamMeans<kThreads>(sums, width, partial);
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
      row.Finish(i, row.template Dy<N>(i), row.template X<N>(i), row.template Dresidual<N>(i),
                 args.shape.rms ? 0 : means.g, means.gn);
    }
  }
}

template <typename T>
bool TakesVectors(const LayerNormBackwardArgs& args) {
  return args.shape.hidden % kVector<T> == 0 && IsAligned(args.dy_TH, args.dy_rows, sizeof(T)) &&
         IsAligned(args.x_TH, args.x_rows, sizeof(T)) &&
         IsAligned(args.dx_TH, args.dx_rows, sizeof(T)) &&
         IsAligned(args.dresidual_TH, args.dresidual_rows, sizeof(T)) && IsAligned({args.gamma_H});
}

bool IsFlat(const LayerNormBackwardArgs& args) {
  return args.x_rows.sizes[0] * args.x_rows.sizes[1] == 1;
}

template <typename T, int N, int kTeam>
void ForwardBy(const LayerNormForwardArgs& args, cudaStream_t stream) {
  const unsigned blocks = Blocks(args.x_rows.rows(), kThreads / kTeam);
  Forward<T, N, kTeam><<<blocks, kThreads, 0, stream>>>(args);
}

template <typename T>
void ForwardOf(const LayerNormForwardArgs& args, cudaStream_t stream) {
  const bool vectors = TakesVectors<T>(args);
  if (TakesWarp<T>(args.shape.hidden)) {
    vectors ? ForwardBy<T, kVector<T>, kWarp>(args, stream) : ForwardBy<T, 1, kWarp>(args, stream);
  } else {
    vectors ? ForwardBy<T, kVector<T>, kThreads>(args, stream)
            : ForwardBy<T, 1, kThreads>(args, stream);
  }
  CheckLaunched("layer norm forward");
}

// The number of blocks that share the rows.
template <int kBlock, int kTeam>
int64_t SlicesOf(int64_t rows) {
  constexpr int kTeams = kBlock / kTeam;
  return std::min(kMultiprocessors * BlocksAtOnce(kBlock), (rows + kTeams - 1) / kTeams);
}

template <typename T, int kBlock, int kTeam, int K, bool kFlat = true>
int64_t BackwardBy(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  const int64_t slices = SlicesOf<kBlock, kTeam>(args.x_rows.rows());
  Backward<T, kBlock, kTeam, K, kFlat><<<static_cast<unsigned>(slices), kBlock, 0, stream>>>(args);
  return slices;
}

template <typename T, int kTeam, int K>
int64_t SumRowsBy(const T* x, int64_t rows, int64_t hidden, float* partial, cudaStream_t stream) {
  const int64_t slices = SlicesOf<128, kTeam>(rows);
  SumRows<T, kTeam, K><<<static_cast<unsigned>(slices), 128, 0, stream>>>(x, rows, hidden, partial);
  return slices;
}

// As many teams of as many threads as BackwardSlices takes.
template <typename T>
int64_t SumRowsOf(const T* x, int64_t rows, int64_t hidden, float* partial, cudaStream_t stream) {
  const int64_t vectors = hidden / kVector<T>;
  if (vectors <= 32) return SumRowsBy<T, 32, 1>(x, rows, hidden, partial, stream);
  if (vectors <= 128) return SumRowsBy<T, 32, 4>(x, rows, hidden, partial, stream);
  if (vectors <= 256) return SumRowsBy<T, 64, 4>(x, rows, hidden, partial, stream);
  return SumRowsBy<T, 128, 4>(x, rows, hidden, partial, stream);
}

template <typename T, int N>
int64_t BackwardByBlocks(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  const int64_t slices = std::min(kMostSlices, args.x_rows.rows());
  BackwardOfWideRows<T, N><<<static_cast<unsigned>(slices), kThreads, 0, stream>>>(args);
  return slices;
}

// Rows are held by as few threads as possible, so that many rows are in flight. Returns the number
// of slices.
template <typename T>
int64_t BackwardSlices(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  if (!TakesVectors<T>(args)) return BackwardByBlocks<T, 1>(args, stream);
  const int64_t vectors = args.shape.hidden / kVector<T>;
  const bool flat = IsFlat(args);
  if (vectors <= 32 && !flat) return BackwardBy<T, 128, 32, 1, /*kFlat=*/false>(args, stream);
  if (vectors > 2048 || !flat) return BackwardByBlocks<T, kVector<T>>(args, stream);
  if (vectors <= 32) return BackwardBy<T, 128, 32, 1>(args, stream);
  if (vectors <= 128) return BackwardBy<T, 128, 32, 4>(args, stream);
  if (vectors <= 256) return BackwardBy<T, 128, 64, 4>(args, stream);
  if (vectors <= kMostVectorsOf128) return BackwardBy<T, 128, 128, 4>(args, stream);
  if (vectors <= 1024) return BackwardBy<T, 256, 256, 4>(args, stream);
  return BackwardBy<T, 512, 512, 4>(args, stream);
}

template <typename T>
void BackwardOf(LayerNormBackwardArgs args, cudaStream_t stream) {
  CHECK(args.dbias_H == nullptr || LayerNormBackwardSumsDx(args));
  const bool sums = args.dgamma_H != nullptr || args.dbeta_H != nullptr || args.dbias_H != nullptr;
  if (!sums) args.workspace = nullptr;
  const int64_t slices = BackwardSlices<T>(args, stream), hidden = args.shape.hidden;
  CheckLaunched("layer norm backward");
  if (sums) {
    AddSlices(args.workspace, slices, hidden, {args.dgamma_H, args.dbeta_H, args.dbias_H}, stream);
  }
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

int64_t LayerNormBackwardWorkspace(int64_t hidden) { return 3 * kMostSlices * hidden; }

bool LayerNormBackwardSumsDx(const LayerNormBackwardArgs& args) {
  const int64_t bytes = SizeOf(args.shape.dtype);
  const bool vectors = args.shape.dtype == DType::kFloat32    ? TakesVectors<float>(args)
                       : args.shape.dtype == DType::kBFloat16 ? TakesVectors<__nv_bfloat16>(args)
                                                              : TakesVectors<__half>(args);
  return vectors && IsFlat(args) && args.shape.hidden * bytes <= kMostVectorsOf128 * kVectorBytes;
}

bool AddColumnSumsAsLayerNorm(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H) {
  const int64_t rows = x_TH.dim(0), hidden = x_TH.dim(1);
  const int64_t bytes = hidden * SizeOf(x_TH.dtype());
  if (!IsAligned({x_TH.raw()}) || bytes % kVectorBytes != 0 ||
      bytes > kMostVectorsOf128 * kVectorBytes) {
    return false;
  }
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(kMostSlices * hidden * static_cast<int64_t>(sizeof(float))));
  WithType(x_TH.dtype(), [&](auto* type) {
    const int64_t slices = SumRowsOf(As(type, x_TH), rows, hidden, partial, Handle(stream));
    CheckLaunched("column sums");
    AddSlices(partial, slices, hidden, {sums_H.data<float>()}, Handle(stream));
  });
  return true;
}

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
