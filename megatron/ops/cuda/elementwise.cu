// Activations, casts, sums and fills: each element is computed separately.
#include <limits>

#include "megatron/ops/activation.h"
#include "megatron/ops/cuda/activation.cuh"
#include "megatron/ops/cuda/column_sums.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/elementwise.h"

namespace megatron::ops::cuda {
namespace {

// Applies a map to elements [N i, N i + N) of its operands, for each i.
template <int N, typename Map>
__global__ void __launch_bounds__(kThreads) MapVectors(int64_t vectors, Map map) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < vectors) map.template Apply<N>(i);
}

// Launches on vectors of 16 bytes of T if the pointers and the number of contiguous elements in a
// row allow it, else on single elements.
template <typename T, typename Map>
void Launch(const Stream& stream, int64_t count, int64_t in_a_row,
            std::initializer_list<const void*> pointers, const Map& map) {
  if (count == 0) return;
  constexpr int N = kVector<T>;
  if (in_a_row % N == 0 && IsAligned(pointers)) {
    MapVectors<N><<<Blocks(count / N, kThreads), kThreads, 0, Handle(stream)>>>(count / N, map);
  } else {
    MapVectors<1><<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(count, map);
  }
  CheckLaunched("an elementwise kernel");
}

template <typename T>
struct ActivateMap {
  Activation activation;
  const T* x;
  T* y;
  template <int N>
  __device__ void Apply(int64_t i) const {
    auto values = Load<T, N>(x, i);
    WithActivation(activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::kActivation;
      for (T& value : values.values) value = FromFloat<T>(Activate<kActivation, T>(ToFloat(value)));
    });
    Store<T, N>(y, i, values);
  }
};

template <typename T>
struct SlopeMap {
  Activation activation;
  const T *dy, *x;
  T* dx;
  // Writes a vector of dx and returns it.
  template <int N>
  __device__ Vector<T, N> Write(int64_t i) const {
    auto gradients = Load<T, N>(dy, i);
    const auto values = Load<T, N>(x, i);
    WithActivation(activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::kActivation;
      for (int j = 0; j < N; ++j) {
        gradients.values[j] =
            FromFloat<T>(ToFloat(gradients.values[j]) *
                         ActivationSlope<kActivation, T>(ToFloat(values.values[j])));
      }
    });
    Store<T, N>(dx, i, gradients);
    return gradients;
  }
  template <int N>
  __device__ void Apply(int64_t i) const {
    Write<N>(i);
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SlopeAndSums(SlopeMap<T> map, int64_t rows, int64_t columns, float* partial) {
  __shared__ SumsOfWarps<N> sums;
  SumSlice<T, N>(rows, columns, sums, partial, [&](int64_t row, int64_t i) {
    return map.template Write<N>(row * (columns / N) + i);
  });
}

// The elements are those of y; gate and up of a row lie `features` apart.
// The cut values of a gate and of what it multiplies (Gate); NaN stays.
struct GateCut {
  float limit, offset;
  explicit GateCut(const Gate& gate) : limit(gate.limit), offset(gate.offset) {}
  __device__ float CutGate(float gate) const { return gate > limit ? limit : gate; }
  __device__ float CutUp(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
};

template <typename T>
struct GateMap {
  Activation activation;
  GateCut cut;
  int64_t features;
  const T* gate_up;
  T* y;
  template <int N>
  __device__ void Apply(int64_t i) const {
    const T* const at = gate_up + i * N / features * features + i * N;
    auto values = Load<T, N>(at, 0);
    const auto ups = Load<T, N>(at + features, 0);
    WithActivation(activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::kActivation;
      for (int j = 0; j < N; ++j) {
        const float gate = cut.CutGate(ToFloat(values.values[j]));
        values.values[j] = FromFloat<T>(Activate<kActivation, T>(gate) *
                                        (cut.CutUp(ToFloat(ups.values[j])) + cut.offset));
      }
    });
    Store<T, N>(y, i, values);
  }
};

template <typename T>
struct GateSlopeMap {
  Activation activation;
  GateCut cut;
  int64_t features;
  const T *dy, *gate_up;
  T* d_gate_up;
  template <int N>
  __device__ void Apply(int64_t i) const {
    const int64_t at = i * N / features * features + i * N;
    const auto gradients = Load<T, N>(dy, i);
    auto gates = Load<T, N>(gate_up + at, 0), ups = Load<T, N>(gate_up + at + features, 0);
    WithActivation(activation, [&](auto constant) {
      constexpr Activation kActivation = decltype(constant)::kActivation;
      for (int j = 0; j < N; ++j) {
        const float gate = ToFloat(gates.values[j]), up = ToFloat(ups.values[j]);
        const float d = ToFloat(gradients.values[j]);
        const float cut_gate = cut.CutGate(gate), cut_up = cut.CutUp(up);
        const float d_gate = d * (cut_up + cut.offset) * ActivationSlope<kActivation, T>(cut_gate);
        const float d_up = d * Activate<kActivation, T>(cut_gate);
        gates.values[j] = FromFloat<T>(gate > cut_gate ? 0.0f : d_gate);
        ups.values[j] = FromFloat<T>(up > cut_up || up < cut_up ? 0.0f : d_up);
      }
    });
    Store<T, N>(d_gate_up + at, 0, gates);
    Store<T, N>(d_gate_up + at + features, 0, ups);
  }
};

template <typename From, typename To>
struct ConvertMap {
  const From* in;
  To* out;
  template <int N>
  __device__ void Apply(int64_t i) const {
    const auto values = Load<From, N>(in, i);
    Vector<To, N> converted;
    for (int j = 0; j < N; ++j) converted.values[j] = FromFloat<To>(ToFloat(values.values[j]));
    Store<To, N>(out, i, converted);
  }
};

template <typename From, typename T>
struct AddMap {
  const From* in;
  T* out;
  template <int N>
  __device__ void Apply(int64_t i) const {
    const auto values = Load<From, N>(in, i);
    auto sums = Load<T, N>(out, i);
    for (int j = 0; j < N; ++j) {
      sums.values[j] = FromFloat<T>(ToFloat(sums.values[j]) + ToFloat(values.values[j]));
    }
    Store<T, N>(out, i, sums);
  }
};

template <typename T>
struct ScaleMap {
  float factor;
  T* out;
  template <int N>
  __device__ void Apply(int64_t i) const {
    auto values = Load<T, N>(out, i);
    for (T& value : values.values) value = FromFloat<T>(ToFloat(value) * factor);
    Store<T, N>(out, i, values);
  }
};

template <typename T>
struct SoftCapMap {
  float cap;
  T* x;
  template <int N>
  __device__ void Apply(int64_t i) const {
    auto values = Load<T, N>(x, i);
    for (T& value : values.values) value = FromFloat<T>(cap * tanhf(ToFloat(value) / cap));
    Store<T, N>(x, i, values);
  }
};

// The dims of a copy, of which neighbours are one dim where that is possible.
struct Strides {
  int rank = 0;
  int64_t sizes[Shape::kMaxRank], in[Shape::kMaxRank], out[Shape::kMaxRank];

  Strides(const Tensor& from, const Tensor& to) {
    for (int d = 0; d < from.rank(); ++d) {
      if (from.dim(d) != 1) Append(from.dim(d), from.stride(d), to.stride(d));
    }
    if (rank == 0) Append(1, 1, 1);
  }
  // Whether n neighbours in the last dim can be copied at once.
  bool TakesVectors(int64_t n) const {
    int64_t bits = sizes[rank - 1];
    for (int d = 0; d + 1 < rank; ++d) bits |= in[d] | out[d];
    return bits % n == 0 && in[rank - 1] == 1 && out[rank - 1] == 1;
  }
  // Makes n neighbours one element.
  void UseVectors(int64_t n) {
    sizes[rank - 1] /= n;
    for (int d = 0; d + 1 < rank; ++d) {
      in[d] /= n;
      out[d] /= n;
    }
  }

 private:
  void Append(int64_t size, int64_t from, int64_t to) {
    if (rank > 0 && in[rank - 1] == size * from && out[rank - 1] == size * to) {
      sizes[rank - 1] *= size;
    } else {
      sizes[rank++] = size;
    }
    in[rank - 1] = from;
    out[rank - 1] = to;
  }
};

// Index has to hold the number of elements. Dividing 32 bits takes much less time than dividing 64.
template <typename Index, typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    CopyStrided(const From* in, To* out, Strides strides, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t from = 0, to = 0;
  Index rest = static_cast<Index>(i);
  for (int d = strides.rank - 1; d > 0; --d) {
    const Index size = static_cast<Index>(strides.sizes[d]), index = rest % size;
    from += index * strides.in[d];
    to += index * strides.out[d];
    rest /= size;
  }
  from += rest * strides.in[0];
  to += rest * strides.out[0];
  if constexpr (std::is_same_v<From, To>) {
    out[to] = in[from];
  } else {
    out[to] = FromFloat<To>(ToFloat(in[from]));
  }
}

template <typename From, typename To>
void LaunchCopyStrided(const Stream& stream, const void* in, void* out, const Strides& strides) {
  int64_t count = 1;
  for (int d = 0; d < strides.rank; ++d) count *= strides.sizes[d];
  const auto kernel = count <= std::numeric_limits<uint32_t>::max()
                          ? CopyStrided<uint32_t, From, To>
                          : CopyStrided<uint64_t, From, To>;
  kernel<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
      static_cast<const From*>(in), static_cast<To*>(out), strides, count);
  CheckLaunched("strided copy");
}

void CopySameType(const Stream& stream, const Tensor& in, const Tensor& out) {
  if (in.is_contiguous() && out.is_contiguous()) return CopyOnCuda(stream.cuda(), in, out);
  Strides strides(in, out);
  const int64_t vector = kVectorBytes / SizeOf(in.dtype());
  if (strides.TakesVectors(vector) && IsAligned({in.raw(), out.raw()})) {
    strides.UseVectors(vector);
    using Line = Vector<uint64_t, 2>;
    return LaunchCopyStrided<Line, Line>(stream, in.raw(), out.raw(), strides);
  }
  switch (SizeOf(in.dtype())) {
    case 1:
      return LaunchCopyStrided<uint8_t, uint8_t>(stream, in.raw(), out.raw(), strides);
    case 2:
      return LaunchCopyStrided<uint16_t, uint16_t>(stream, in.raw(), out.raw(), strides);
    case 4:
      return LaunchCopyStrided<uint32_t, uint32_t>(stream, in.raw(), out.raw(), strides);
    default:
      return LaunchCopyStrided<uint64_t, uint64_t>(stream, in.raw(), out.raw(), strides);
  }
}

template <typename From, typename To>
void Convert(const Stream& stream, const Tensor& in, const Tensor& out, From* in_type,
             To* out_type) {
  if (!in.is_contiguous() || !out.is_contiguous()) {
    return LaunchCopyStrided<From, To>(stream, in.raw(), out.raw(), Strides(in, out));
  }
  using Larger = std::conditional_t<(sizeof(From) > sizeof(To)), From, To>;
  Launch<Larger>(stream, in.numel(), in.numel(), {in.raw(), out.raw()},
                 ConvertMap<From, To>{As(in_type, in), As(out_type, out)});
}

}  // namespace

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                       const Tensor& y_TI) {
  WithType(x_TI.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, x_TI.numel(), x_TI.numel(), {x_TI.raw(), y_TI.raw()},
              ActivateMap<T>{activation, As(type, x_TI), As(type, y_TI)});
  });
}

void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TI,
                        const Tensor& x_TI, const Tensor& dx_TI) {
  WithType(x_TI.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, x_TI.numel(), x_TI.numel(), {dy_TI.raw(), x_TI.raw(), dx_TI.raw()},
              SlopeMap<T>{activation, As(type, dy_TI), As(type, x_TI), As(type, dx_TI)});
  });
}

void ActivationBackwardAndBias(const Stream& stream, Activation activation, const Tensor& dy_TI,
                               const Tensor& x_TI, const Tensor& dx_TI, const Tensor& dbias_I) {
  const int64_t rows = x_TI.dim(0), columns = x_TI.dim(1);
  if (x_TI.numel() == 0) return;
  const int64_t slices = SlicesOf(rows);
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(slices * columns * static_cast<int64_t>(sizeof(float))));
  WithType(x_TI.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int N = kVector<T>;
    const SlopeMap<T> map = {activation, As(type, dy_TI), As(type, x_TI), As(type, dx_TI)};
    if (columns % N == 0 && IsAligned({dy_TI.raw(), x_TI.raw(), dx_TI.raw()})) {
      SlopeAndSums<T, N><<<GridOfSlices(rows, columns, N), kThreads, 0, Handle(stream)>>>(
          map, rows, columns, partial);
    } else {
      SlopeAndSums<T, 1><<<GridOfSlices(rows, columns, 1), kThreads, 0, Handle(stream)>>>(
          map, rows, columns, partial);
    }
  });
  CheckLaunched("slope and column sums");
  AddSlices(partial, slices, columns, {dbias_I.data<float>()}, Handle(stream));
}

void GateForward(const Stream& stream, const Gate& gate, const Tensor& gate_up_T2I,
                 const Tensor& y_TI) {
  WithType(y_TI.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, y_TI.numel(), y_TI.dim(1), {gate_up_T2I.raw(), y_TI.raw()},
              GateMap<T>{gate.activation, GateCut(gate), y_TI.dim(1), As(type, gate_up_T2I),
                         As(type, y_TI)});
  });
}

void GateBackward(const Stream& stream, const Gate& gate, const Tensor& dy_TI,
                  const Tensor& gate_up_T2I, const Tensor& d_gate_up_T2I) {
  WithType(dy_TI.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, dy_TI.numel(), dy_TI.dim(1),
              {dy_TI.raw(), gate_up_T2I.raw(), d_gate_up_T2I.raw()},
              GateSlopeMap<T>{gate.activation, GateCut(gate), dy_TI.dim(1), As(type, dy_TI),
                              As(type, gate_up_T2I), As(type, d_gate_up_T2I)});
  });
}

void Copy(const Stream& stream, const Tensor& in, const Tensor& out) {
  if (in.numel() == 0) return;
  if (in.dtype() == out.dtype()) return CopySameType(stream, in, out);
  WithType(in.dtype(), [&](auto* in_type) {
    WithType(out.dtype(), [&](auto* out_type) { Convert(stream, in, out, in_type, out_type); });
  });
}

void Add(const Stream& stream, const Tensor& in, const Tensor& out) {
  WithType(out.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto add = [&](auto* from) {
      using From = std::remove_pointer_t<decltype(from)>;
      // From is T or the larger of both.
      Launch<From>(stream, in.numel(), in.numel(), {in.raw(), out.raw()},
                   AddMap<From, T>{As(from, in), As(type, out)});
    };
    if (in.dtype() == out.dtype()) {
      add(type);
    } else {
      add(static_cast<float*>(nullptr));
    }
  });
}

void Scale(const Stream& stream, float factor, const Tensor& out) {
  WithType(out.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, out.numel(), out.numel(), {out.raw()}, ScaleMap<T>{factor, As(type, out)});
  });
}

void SoftCap(const Stream& stream, float cap, const Tensor& x) {
  WithType(x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch<T>(stream, x.numel(), x.numel(), {x.raw()}, SoftCapMap<T>{cap, As(type, x)});
  });
}

void Zero(const Stream& stream, const Tensor& out) {
  if (out.bytes() == 0) return;
  CHECK_EQ(cudaMemsetAsync(out.raw(), 0, static_cast<size_t>(out.bytes()), Handle(stream)),
           cudaSuccess);
}

MEGATRON_CUDA_KERNEL(ActivationForward);
MEGATRON_CUDA_KERNEL(ActivationBackward);
MEGATRON_CUDA_KERNEL(ActivationBackwardAndBias);
MEGATRON_CUDA_KERNEL(GateForward);
MEGATRON_CUDA_KERNEL(GateBackward);
MEGATRON_CUDA_KERNEL(Copy);
MEGATRON_CUDA_KERNEL(Add);
MEGATRON_CUDA_KERNEL(Scale);
MEGATRON_CUDA_KERNEL(SoftCap);
MEGATRON_CUDA_KERNEL(Zero);

}  // namespace megatron::ops::cuda
