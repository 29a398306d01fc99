#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {
namespace {

// A constant, not the number of multiprocessors: the order of the sum must not depend on the
// device.
constexpr int kSlices = 128;

// Threads are columns, so that a warp reads neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumSlice(const T* x, int64_t rows, int64_t columns, int64_t stride, float* partial) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t per_slice = (rows + kSlices - 1) / kSlices;
  const int64_t first = blockIdx.y * per_slice;
  const int64_t last = min(first + per_slice, rows);
  float sum = 0;
  for (int64_t row = first; row < last; ++row) sum += ToFloat(x[row * stride + column]);
  partial[blockIdx.y * columns + column] = sum;
}

__global__ void __launch_bounds__(kThreads)
    AddSlices(const float* partial, int64_t columns, float* sums) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int slice = 0; slice < kSlices; ++slice) sum += partial[slice * columns + column];
  sums[column] += sum;
}

}  // namespace

void AddColumnSums(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H) {
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1);
  if (rows == 0 || columns == 0) return;
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(kSlices * columns * static_cast<int64_t>(sizeof(float))));
  const unsigned tiles = Blocks(columns, kThreads);
  WithType(x_TH.dtype(), [&](auto* type) {
    SumSlice<<<dim3(tiles, kSlices), kThreads, 0, Handle(stream)>>>(As(type, x_TH), rows, columns,
                                                                    x_TH.stride(0), partial);
  });
  AddSlices<<<tiles, kThreads, 0, Handle(stream)>>>(partial, columns, sums_H.data<float>());
  CheckLaunched("column sums");
}

}  // namespace megatron::ops::cuda
