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

// Tokens sorted by id, equal ids in ascending order of token, are a sequence of runs. It is cut
// into pieces of so many tokens, so that a token that occurs in every second place does not keep
// one block busy while others are done.
constexpr int64_t kPiece = 64;

struct Runs {
  const int32_t *ids, *tokens;  // sorted
  int64_t count, rows, columns, first_row;

  // Whether the run of entry i - 1 goes on with entry i.
  __device__ bool GoesOn(int64_t i) const { return i > 0 && i < count && ids[i] == ids[i - 1]; }
  // The row of an entry's id in the table, or -1.
  __device__ int64_t Row(int64_t i) const {
    const int64_t row = ids[i] - first_row;
    return row < rows ? row : -1;
  }
  __device__ int64_t column() const {
    return static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  }
};

// Each block has a piece, and each of its threads a column. A run inside the piece is added to its
// row. Of the others the sums are written, one of the run that comes from the piece before and one
// of a run that begins here: partial [pieces, 2, columns].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddPieces(Runs runs, const T* dy, float* dtable, float* partial) {
  const int64_t column = runs.column();
  if (column >= runs.columns) return;
  const int64_t begin = blockIdx.x * kPiece, end = min(begin + kPiece, runs.count);
  float* const partials = partial + blockIdx.x * 2 * runs.columns + column;
  for (int64_t first = begin, last; first < end; first = last) {
    for (last = first + 1; last < end && runs.GoesOn(last);) ++last;
    const int64_t row = runs.Row(first);
    if (row < 0) continue;
    const bool comes = first == begin && runs.GoesOn(first), goes = runs.GoesOn(last);
    float* const out = comes  ? partials
                       : goes ? partials + runs.columns
                              : dtable + row * runs.columns + column;
    float sum = comes || goes ? 0 : *out;
#pragma unroll 4
    for (int64_t i = first; i < last; ++i)
      sum += ToFloat(dy[runs.tokens[i] * runs.columns + column]);
    *out = sum;
  }
}

// The block of the piece in which a run begins that goes on in others adds the run's sums to its
// row, in order.
__global__ void __launch_bounds__(kThreads)
    AddPartials(Runs runs, const float* partial, float* dtable) {
  const int64_t column = runs.column(), end = (blockIdx.x + int64_t{1}) * kPiece;
  if (column >= runs.columns || !runs.GoesOn(end)) return;
  const bool begins = runs.ids[end - 1] != runs.ids[end - kPiece] || !runs.GoesOn(end - kPiece);
  const int64_t row = runs.Row(end);
  if (!begins || row < 0) return;
  const float* const partials = partial + column;
  float sum = dtable[row * runs.columns + column] +
              partials[(2 * static_cast<int64_t>(blockIdx.x) + 1) * runs.columns];
  for (int64_t at = end; runs.GoesOn(at); at += kPiece) {
    sum += partials[2 * (at / kPiece) * runs.columns];
    // The run ends in this piece if it does not reach the piece's last entry.
    if (at + kPiece > runs.count || runs.ids[at + kPiece - 1] != runs.ids[at]) break;
  }
  dtable[row * runs.columns + column] = sum;
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
  const int64_t pieces = (tokens + kPiece - 1) / kPiece, columns = dtable_VH.dim(1);
  const int64_t partial_bytes = Aligned(pieces * 2 * columns * static_cast<int64_t>(sizeof(float)));
  auto* const workspace = static_cast<char*>(
      stream.cuda()->Workspace(3 * list_bytes + partial_bytes + static_cast<int64_t>(sort_bytes)));
  auto* const counted = reinterpret_cast<int32_t*>(workspace);
  auto* const sorted_ids = reinterpret_cast<int32_t*>(workspace + list_bytes);
  auto* const sorted_tokens = reinterpret_cast<int32_t*>(workspace + 2 * list_bytes);
  Count<<<Blocks(tokens, kThreads), kThreads, 0, Handle(stream)>>>(tokens, counted);
  auto* const partial = reinterpret_cast<float*>(workspace + 3 * list_bytes);
  sort(workspace + 3 * list_bytes + partial_bytes, sorted_ids, counted, sorted_tokens);
  const Runs runs = {sorted_ids, sorted_tokens, tokens, dtable_VH.dim(0), columns, first_row};
  const dim3 grid(Blocks(pieces, 1), Blocks(columns, kThreads));
  float* const dtable = dtable_VH.data<float>();
  WithType(dy_TH.dtype(), [&](auto* type) {
    AddPieces<<<grid, kThreads, 0, Handle(stream)>>>(runs, As(type, dy_TH), dtable, partial);
  });
  AddPartials<<<grid, kThreads, 0, Handle(stream)>>>(runs, partial, dtable);
  CheckLaunched("embedding backward");
}

MEGATRON_CUDA_KERNEL(EmbeddingForward);
MEGATRON_CUDA_KERNEL(EmbeddingBackward);

}  // namespace megatron::ops::cuda
