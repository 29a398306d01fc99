#include <cub/block/block_scan.cuh>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/moe/host_choices.h"
#include "megatron/ops/moe/permute.h"

namespace megatron::ops::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    CountExpert(const int32_t* expert, int64_t count, int64_t* counts) {
  __shared__ int partial[kWarps];
  const int64_t mine = blockIdx.x;
  int found = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) found += expert[i] == mine;
  found = BlockSum(found, partial);
  if (threadIdx.x == 0) counts[blockIdx.x] = found;
}

// Computes rows[rank, copy, expert] and where each begins, with one thread: there are only as many
// as experts.
__global__ void BeginRows(const int64_t* counts, int64_t entries, int64_t copies, int64_t at_once,
                          int64_t padded, int64_t parts, int64_t* rows, int64_t* begins) {
  int64_t end = 0;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = 0; i < entries; ++i) {
      const int64_t local = i % at_once;
      if (local * parts / at_once != part) continue;
      rows[i] = padded > 0 ? padded : counts[i / (copies * at_once) * at_once + local];
      begins[i] = end;
      end += rows[i];
    }
  }
}

// Each block numbers the choices of one expert in order.
__global__ void __launch_bounds__(kThreads)
    NumberChoices(const int32_t* expert, int64_t count, int64_t copies, int64_t at_once,
                  const int64_t* begins, int32_t* place) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  const int64_t mine = blockIdx.x;
  int64_t before = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_mine = i < count && expert[i] == mine;
    int number, total;
    Scan(storage).ExclusiveSum(is_mine ? 1 : 0, number, total);
    __syncthreads();
    for (int64_t c = 0; is_mine && c < copies; ++c) {
      const int64_t begin = begins[(mine / at_once * copies + c) * at_once + mine % at_once];
      place[i * copies + c] = static_cast<int32_t>(begin + before + number);
    }
    before += total;
  }
}

// The kernels of host_choices.h have one thread for each choice.
__global__ void __launch_bounds__(kThreads)
    ChooseHosts(const int32_t* expert, int64_t count, int64_t topk, int64_t per_host,
                int32_t* host) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t mine = expert[i] < 0 ? -1 : expert[i] / per_host;
  for (int64_t before = i / topk * topk; before < i; ++before) {
    if (expert[before] >= 0 && expert[before] / per_host == mine) mine = -1;
  }
  host[i] = static_cast<int32_t>(mine);
}

__global__ void __launch_bounds__(kThreads) Pack(const int32_t* expert, const float* probability,
                                                 int64_t count, int64_t topk, float* packed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  float* const mine = packed + i / topk * 2 * topk + i % topk;
  mine[0] = static_cast<float>(expert[i]);
  mine[topk] = probability[i];
}

__global__ void __launch_bounds__(kThreads)
    Unpack(const float* packed, int64_t count, int64_t topk, int64_t first, int64_t per_host,
           int32_t* expert, float* probability) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float* const mine = packed + i / topk * 2 * topk + i % topk;
  const float number = mine[0] - static_cast<float>(first);
  const bool is_here = number >= 0 && number < static_cast<float>(per_host);
  expert[i] = is_here ? static_cast<int32_t>(number) : -1;
  probability[i] = mine[topk];
}

// Each block has one token and reads N elements at once.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    Spread(const T* x, const int32_t* place, int64_t places, int64_t columns, T* out) {
  const int64_t token = blockIdx.x, vectors = columns / N;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const auto values = Load<T, N>(x + token * columns, i);
    for (int64_t p = 0; p < places; ++p) {
      const int64_t row = place[token * places + p];
      if (row >= 0) Store<T, N>(out + row * columns, i, values);
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    Collect(const T* rows, const int32_t* place, int64_t places, int64_t per_weight,
            const float* weight, int64_t columns, T* out) {
  const int64_t token = blockIdx.x, vectors = columns / N;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    float sums[N] = {};
    for (int64_t p = 0; p < places; ++p) {
      const int64_t row = place[token * places + p];
      if (row < 0) continue;
      const float factor =
          weight == nullptr ? 1.0f : weight[token * (places / per_weight) + p / per_weight];
      const auto values = Load<T, N>(rows + row * columns, i);
      for (int j = 0; j < N; ++j) sums[j] = fmaf(factor, ToFloat(values.values[j]), sums[j]);
    }
    Vector<T, N> result;
    for (int j = 0; j < N; ++j) result.values[j] = FromFloat<T>(sums[j]);
    Store<T, N>(out + token * columns, i, result);
  }
}

struct Weighted {
  const int32_t* place;
  const float* probability;
  float* dprobability;
  int64_t topk, copies, columns;
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    WeighBackward(Weighted weighted, const T* dy, const T* x, T* dx) {
  __shared__ float partial[kWarps];
  const int64_t token = blockIdx.x, columns = weighted.columns, vectors = columns / N;
  for (int64_t k = 0; k < weighted.topk; ++k) {
    const int64_t choice = token * weighted.topk + k;
    const float probability = weighted.probability[choice];
    float dot = 0;
    for (int64_t c = 0; c < weighted.copies; ++c) {
      const int64_t row = weighted.place[choice * weighted.copies + c];
      if (row < 0) continue;
      for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
        const auto gradient = Load<T, N>(dy + token * columns, i);
        const auto value = Load<T, N>(x + row * columns, i);
        Vector<T, N> result;
        for (int j = 0; j < N; ++j) {
          const float g = ToFloat(gradient.values[j]);
          dot = fmaf(g, ToFloat(value.values[j]), dot);
          result.values[j] = FromFloat<T>(probability * g);
        }
        Store<T, N>(dx + row * columns, i, result);
      }
    }
    dot = BlockSum(dot, partial);
    if (threadIdx.x == 0) weighted.dprobability[choice] = dot;
  }
}

// Calls body(type, std::integral_constant of the vector size) for rows of these tensors.
template <typename Body>
void WithVectors(const Tensor& a, const Tensor& b, const Body& body) {
  WithType(a.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (a.dim(1) % kVector<T> == 0 && IsAligned({a.raw(), b.raw()})) {
      body(type, std::integral_constant<int, kVector<T>>());
    } else {
      body(type, std::integral_constant<int, 1>());
    }
  });
}

void CollectRows(const Stream& stream, const Tensor& rows_RH, const Tensor& place_TKC,
                 const Tensor& probability_TK, const Tensor& out_TH) {
  if (out_TH.numel() == 0) return;
  WithVectors(out_TH, rows_RH, [&](auto* type, auto size) {
    using T = std::remove_pointer_t<decltype(type)>;
    Collect<T, decltype(size)::value><<<Blocks(out_TH.dim(0), 1), kThreads, 0, Handle(stream)>>>(
        As(type, rows_RH), place_TKC.data<int32_t>(), place_TKC.dim(1) * place_TKC.dim(2),
        place_TKC.dim(2), probability_TK.empty() ? nullptr : probability_TK.data<float>(),
        out_TH.dim(1), As(type, out_TH));
  });
  CheckLaunched("unpermute");
}

}  // namespace

void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded, int64_t parts) {
  const int64_t copies = place_TKC.dim(2), at_once = rows_RCL.dim(2), count = expert_TK.numel();
  const int64_t experts = rows_RCL.dim(0) * at_once;
  auto* const counts = static_cast<int64_t*>(stream.cuda()->Workspace(
      (experts + rows_RCL.numel()) * static_cast<int64_t>(sizeof(int64_t))));
  int64_t* const begins = counts + experts;
  CHECK_EQ(cudaMemsetAsync(place_TKC.raw(), 0xff, place_TKC.bytes(), Handle(stream)), cudaSuccess);
  CountExpert<<<Blocks(experts, 1), kThreads, 0, Handle(stream)>>>(expert_TK.data<int32_t>(), count,
                                                                   counts);
  BeginRows<<<1, 1, 0, Handle(stream)>>>(counts, rows_RCL.numel(), copies, at_once, padded, parts,
                                         rows_RCL.data<int64_t>(), begins);
  NumberChoices<<<Blocks(experts, 1), kThreads, 0, Handle(stream)>>>(
      expert_TK.data<int32_t>(), count, copies, at_once, begins, place_TKC.data<int32_t>());
  CheckLaunched("places of rows");
}

void FirstChoiceOfHost(const Stream& stream, const Tensor& expert_TK, int64_t experts_per_host,
                       const Tensor& host_TK) {
  if (expert_TK.numel() == 0) return;
  ChooseHosts<<<Blocks(expert_TK.numel(), kThreads), kThreads, 0, Handle(stream)>>>(
      expert_TK.data<int32_t>(), expert_TK.numel(), expert_TK.dim(1), experts_per_host,
      host_TK.data<int32_t>());
  CheckLaunched("hosts of choices");
}

void PackChoices(const Stream& stream, const Tensor& expert_TK, const Tensor& probability_TK,
                 const Tensor& packed_TC) {
  if (expert_TK.numel() == 0) return;
  Pack<<<Blocks(expert_TK.numel(), kThreads), kThreads, 0, Handle(stream)>>>(
      expert_TK.data<int32_t>(), probability_TK.data<float>(), expert_TK.numel(), expert_TK.dim(1),
      packed_TC.data<float>());
  CheckLaunched("packed choices");
}

void UnpackChoices(const Stream& stream, const Tensor& packed_TC, int64_t first,
                   int64_t experts_per_host, const Tensor& expert_TK,
                   const Tensor& probability_TK) {
  if (expert_TK.numel() == 0) return;
  Unpack<<<Blocks(expert_TK.numel(), kThreads), kThreads, 0, Handle(stream)>>>(
      packed_TC.data<float>(), expert_TK.numel(), expert_TK.dim(1), first, experts_per_host,
      expert_TK.data<int32_t>(), probability_TK.data<float>());
  CheckLaunched("unpacked choices");
}

void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH) {
  if (x_TH.numel() == 0) return;
  WithVectors(x_TH, out_RH, [&](auto* type, auto size) {
    using T = std::remove_pointer_t<decltype(type)>;
    Spread<T, decltype(size)::value><<<Blocks(x_TH.dim(0), 1), kThreads, 0, Handle(stream)>>>(
        As(type, x_TH), place_TKC.data<int32_t>(), place_TKC.dim(1) * place_TKC.dim(2), x_TH.dim(1),
        As(type, out_RH));
  });
  CheckLaunched("permute");
}

void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH) {
  CollectRows(stream, dout_RH, place_TKC, Tensor(), dx_TH);
}

void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH) {
  CollectRows(stream, x_RH, place_TKC, probability_TK, y_TH);
}

void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK) {
  if (dy_TH.numel() == 0) return;
  const Weighted weighted = {place_TKC.data<int32_t>(),
                             probability_TK.data<float>(),
                             dprobability_TK.data<float>(),
                             place_TKC.dim(1),
                             place_TKC.dim(2),
                             dy_TH.dim(1)};
  WithVectors(dy_TH, x_RH, [&](auto* type, auto size) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kSize = decltype(size)::value;
    if (kSize > 1 && !IsAligned({dx_RH.raw()})) {
      WeighBackward<T, 1><<<Blocks(dy_TH.dim(0), 1), kThreads, 0, Handle(stream)>>>(
          weighted, As(type, dy_TH), As(type, x_RH), As(type, dx_RH));
    } else {
      WeighBackward<T, kSize><<<Blocks(dy_TH.dim(0), 1), kThreads, 0, Handle(stream)>>>(
          weighted, As(type, dy_TH), As(type, x_RH), As(type, dx_RH));
    }
  });
  CheckLaunched("unpermute backward");
}

MEGATRON_CUDA_KERNEL(PlaceByExpert);
MEGATRON_CUDA_KERNEL(FirstChoiceOfHost);
MEGATRON_CUDA_KERNEL(PackChoices);
MEGATRON_CUDA_KERNEL(UnpackChoices);
MEGATRON_CUDA_KERNEL(Permute);
MEGATRON_CUDA_KERNEL(PermuteBackward);
MEGATRON_CUDA_KERNEL(Unpermute);
MEGATRON_CUDA_KERNEL(UnpermuteBackward);

}  // namespace megatron::ops::cuda
