#include <cub/device/device_radix_sort.cuh>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/embedding.h"

namespace megatron::ops::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    LookUp(const int32_t* ids, const T* table, int64_t rows, int64_t columns, int64_t first_row,
           bool accumulate, T* y) {
  const int64_t token = blockIdx.x;
  const int64_t row = ids[token] - first_row;
  const bool here = row >= 0 && row < rows;
  if (accumulate && !here) return;
  for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
    float value = here ? ToFloat(table[row * columns + column]) : 0.0f;
    T& out = y[token * columns + column];
    if (accumulate) value += ToFloat(out);
    out = FromFloat<T>(value);
  }
}

__global__ void __launch_bounds__(kThreads) Count(int64_t tokens, int32_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < tokens) out[i] = static_cast<int32_t>(i);
}

// Tokens sorted by id, equal ids in ascending order of token. The block of the first token of an id
// adds all of them to the id's row, in that order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddRuns(const int32_t* sorted_ids, const int32_t* sorted_tokens, int64_t tokens, int64_t rows,
            int64_t columns, int64_t first_row, const T* dy, float* dtable) {
  const int64_t begin = blockIdx.x;
  const int32_t id = sorted_ids[begin];
  if (begin > 0 && sorted_ids[begin - 1] == id) return;
  const int64_t row = id - first_row;
  if (row < 0 || row >= rows) return;
  int64_t end = begin + 1;
  while (end < tokens && sorted_ids[end] == id) ++end;
  for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
    float sum = dtable[row * columns + column];
    for (int64_t i = begin; i < end; ++i) {
      sum += ToFloat(dy[sorted_tokens[i] * columns + column]);
    }
    dtable[row * columns + column] = sum;
  }
}

int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH) {
  if (y_TH.numel() == 0) return;
  WithType(y_TH.dtype(), [&](auto* type) {
    LookUp<<<Blocks(ids_T.dim(0), 1), kThreads, 0, Handle(stream)>>>(
        ids_T.data<int32_t>(), As(type, table_VH), table_VH.dim(0), table_VH.dim(1), first_row,
        accumulate, As(type, y_TH));
  });
  CheckLaunched("embedding");
}

void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH) {
  const int64_t tokens = ids_T.dim(0);
  if (dy_TH.numel() == 0) return;
  const int64_t list_bytes = Aligned(tokens * static_cast<int64_t>(sizeof(int32_t)));
  const int32_t* const ids = ids_T.data<int32_t>();
  size_t sort_bytes = 0;
  const auto sort = [&](void* scratch, int32_t* sorted_ids, const int32_t* in, int32_t* out) {
    CHECK_EQ(cub::DeviceRadixSort::SortPairs(scratch, sort_bytes, ids, sorted_ids, in, out,
                                             static_cast<int>(tokens), 0, 32, Handle(stream)),
             cudaSuccess);
  };
  sort(nullptr, nullptr, nullptr, nullptr);  // asks for the scratch memory's size
  auto* const workspace = static_cast<char*>(
      stream.cuda()->Workspace(3 * list_bytes + static_cast<int64_t>(sort_bytes)));
  auto* const counted = reinterpret_cast<int32_t*>(workspace);
  auto* const sorted_ids = reinterpret_cast<int32_t*>(workspace + list_bytes);
  auto* const sorted_tokens = reinterpret_cast<int32_t*>(workspace + 2 * list_bytes);
  Count<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(tokens, counted);
  sort(workspace + 3 * list_bytes, sorted_ids, counted, sorted_tokens);
  WithType(dy_TH.dtype(), [&](auto* type) {
    AddRuns<<<Blocks(tokens, 1), kThreads, 0, Handle(stream)>>>(
        sorted_ids, sorted_tokens, tokens, dtable_VH.dim(0), dtable_VH.dim(1), first_row,
        As(type, dy_TH), dtable_VH.data<float>());
  });
  CheckLaunched("embedding backward");
}

MEGATRON_CUDA_KERNEL(EmbeddingForward);
MEGATRON_CUDA_KERNEL(EmbeddingBackward);

}  // namespace megatron::ops::cuda
