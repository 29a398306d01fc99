// Products of groups of rows, each with its own weight, in one launch. A block computes a tile of
// the result: of one group (forward, gradient of the input), or of one expert over its groups
// (gradient of the weight). 16-bit types use tensor cores, fp32 uses fused multiply-adds.
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/tile_product.cuh"
#include "megatron/ops/moe/grouped_linear.h"

namespace megatron::ops::cuda {
namespace {

// Writes (=) or adds (+=) the tile's elements that exist to out.
template <typename T, typename Out>
__device__ void StoreTile(const TileSums<T>& sums, int64_t rows, int64_t columns, int64_t stride,
                          bool accumulate, Out* out) {
  sums.ForEach([&](int row, int column, float sum) {
    if (row >= rows || column >= columns) return;
    Out& element = out[row * stride + column];
    element = FromFloat<Out>(sum + (accumulate ? ToFloat(element) : 0.0f));
  });
}

// The largest number of groups of one launch. They are kernel parameters, which hold 32 KiB (from
// CUDA 12.1 and sm_70 on), so nothing has to be copied to the device first.
constexpr int kGroups = 512;

// Rows [begin, end), in tiles of kTile.
struct Group {
  int64_t expert, begin, end;
  int64_t first_tile;
};

struct Groups {
  int count = 0;
  int64_t tiles = 0;
  Group groups[kGroups];
};

// y = x w^T for each group, or x w if kTransposed. w is [expert][out, in] in both cases.
template <typename T, bool kAsync, bool kTransposed>
__global__ void __launch_bounds__(kTileThreads)
    MultiplyRows(const __grid_constant__ Groups groups, const T* x, const T* w, int64_t outputs,
                 int64_t inputs, T* y) {
  __shared__ SharedTile<T, true, !kTransposed> stages[kStages<kAsync>];
  const Group& group = EntryOf(groups.groups, groups.count, blockIdx.x);
  const int64_t begin = group.begin + (blockIdx.x - group.first_tile) * kTile;
  const int64_t rows = min(int64_t{kTile}, group.end - begin);
  const int64_t depth = kTransposed ? outputs : inputs, width = kTransposed ? inputs : outputs;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile;
  const Lines<T> a = {x + begin * depth, rows, depth, depth};
  const Lines<T> b = {w + group.expert * outputs * inputs, outputs, inputs, inputs};
  TileSums<T> sums;
  MultiplyTile<kAsync>(a, b, 0, column, depth, stages, &sums);
  StoreTile(sums, rows, width - column, width, /*accumulate=*/false, y + begin * width + column);
}

// dw[expert] += dy^T x over the expert's groups.
template <typename T, bool kAsync>
__global__ void __launch_bounds__(kTileThreads)
    MultiplyColumns(const __grid_constant__ Groups groups, const T* dy, const T* x, int64_t outputs,
                    int64_t inputs, float* dw) {
  __shared__ SharedTile<T, false, false> stages[kStages<kAsync>];
  const int64_t expert = blockIdx.z, row = static_cast<int64_t>(blockIdx.y) * kTile,
                column = static_cast<int64_t>(blockIdx.x) * kTile;
  TileSums<T> sums;
  for (int i = 0; i < groups.count; ++i) {
    const Group& group = groups.groups[i];
    if (group.expert != expert) continue;
    const int64_t rows = group.end - group.begin;
    const Lines<T> a = {dy + group.begin * outputs, rows, outputs, outputs};
    const Lines<T> b = {x + group.begin * inputs, rows, inputs, inputs};
    MultiplyTile<kAsync>(a, b, row, column, rows, stages, &sums);
  }
  StoreTile(sums, outputs - row, inputs - column, inputs, /*accumulate=*/true,
            dw + (expert * outputs + row) * inputs + column);
}

// Calls launch(groups) for as many launches as the groups need.
template <typename LaunchGroups>
void ForEachLaunch(absl::Span<const RowGroup> all, LaunchGroups launch) {
  Groups batch;
  for (const RowGroup& group : all) {
    if (group.begin == group.end) continue;
    batch.groups[batch.count++] = {group.expert, group.begin, group.end, batch.tiles};
    batch.tiles += (group.end - group.begin + kTile - 1) / kTile;
    if (batch.count < kGroups) continue;
    launch(batch);
    batch = Groups();
  }
  if (batch.count > 0) launch(batch);
}

// Calls body(type, constant); the constant says whether operands can be read in vectors.
template <typename Body>
void WithOperands(const Tensor& x, const Tensor& other, std::initializer_list<int64_t> widths,
                  Body body) {
  WithType(x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    bool async = !std::is_same_v<T, float> && IsAligned({x.raw(), other.raw()});
    for (int64_t width : widths) async = async && width % kVector<T> == 0;
    if constexpr (!std::is_same_v<T, float>) {
      if (async) return body(type, std::true_type());
    }
    body(type, std::false_type());
  });
}

template <bool kTransposed>
void RunRows(const Stream& stream, absl::Span<const RowGroup> groups, const Tensor& x,
             const Tensor& w_EOI, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t outputs = w_EOI.dim(1), inputs = w_EOI.dim(2);
  ForEachLaunch(groups, [&](const Groups& batch) {
    const dim3 grid(Blocks(batch.tiles, 1), Blocks(y.dim(1), kTile));
    WithOperands(x, w_EOI, {outputs, inputs}, [&](auto* type, auto async) {
      using T = std::remove_pointer_t<decltype(type)>;
      MultiplyRows<T, decltype(async)::value, kTransposed>
          <<<grid, kTileThreads, 0, Handle(stream)>>>(batch, As(type, x), As(type, w_EOI), outputs,
                                                      inputs, As(type, y));
    });
    CheckLaunched("grouped linear");
  });
}

}  // namespace

void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO) {
  RunRows</*kTransposed=*/false>(stream, groups, x_RI, w_EOI, y_RO);
}

void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI) {
  RunRows</*kTransposed=*/true>(stream, groups, dy_RO, w_EOI, dx_RI);
}

void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI) {
  if (dw_EOI.numel() == 0 || x_RI.dim(0) == 0) return;
  const int64_t outputs = dw_EOI.dim(1), inputs = dw_EOI.dim(2);
  const dim3 grid(Blocks(inputs, kTile), Blocks(outputs, kTile),
                  static_cast<unsigned>(dw_EOI.dim(0)));
  // Each launch rounds the sum of an expert, so which of its groups share one must not depend on
  // where they lie among those of other experts.
  std::vector<RowGroup> by_expert(groups.begin(), groups.end());
  std::stable_sort(by_expert.begin(), by_expert.end(),
                   [](const RowGroup& a, const RowGroup& b) { return a.expert < b.expert; });
  ForEachLaunch(by_expert, [&](const Groups& batch) {
    WithOperands(dy_RO, x_RI, {outputs, inputs}, [&](auto* type, auto async) {
      using T = std::remove_pointer_t<decltype(type)>;
      MultiplyColumns<T, decltype(async)::value><<<grid, kTileThreads, 0, Handle(stream)>>>(
          batch, As(type, dy_RO), As(type, x_RI), outputs, inputs, dw_EOI.data<float>());
    });
    CheckLaunched("grouped linear weight gradient");
  });
}

MEGATRON_CUDA_KERNEL(GroupedLinearForward);
MEGATRON_CUDA_KERNEL(GroupedLinearBackwardInput);
MEGATRON_CUDA_KERNEL(GroupedLinearBackwardWeight);

}  // namespace megatron::ops::cuda
