#include "megatron/ops/cpu/embedding_kernels.h"

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// sum[0, count) += x[0, count).
template <typename X, typename Y>
void AddTo(int64_t count, const X* x, Y* sum) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(sum + i, Load(sum + i) + Load(x + i));
  if (i == count) return;
  const int n = static_cast<int>(count - i);
  StorePartial(sum + i, LoadPartial(sum + i, n) + LoadPartial(x + i, n), n);
}

template <typename T>
void Forward(const EmbeddingLookup& lookup, const T* table, bool accumulate, T* y, int64_t begin,
             int64_t end) {
  const size_t bytes = static_cast<size_t>(lookup.columns) * sizeof(T);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = lookup.ids[t] - lookup.first_row;
    const bool here = row >= 0 && row < lookup.rows;
    T* out = y + t * lookup.columns;
    if (!here && !accumulate) __builtin_memset(static_cast<void*>(out), 0, bytes);
    if (here && !accumulate) {
      __builtin_memcpy(static_cast<void*>(out), table + row * lookup.columns, bytes);
    }
    if (here && accumulate) AddTo(lookup.columns, table + row * lookup.columns, out);
  }
}

template <typename T>
void Backward(const EmbeddingLookup& lookup, const T* dy, float* dtable, int64_t begin,
              int64_t end) {
  for (int64_t t = 0; t < lookup.tokens; ++t) {
    const int64_t row = lookup.ids[t] - lookup.first_row;
    if (row < 0 || row >= lookup.rows) continue;
    AddTo(end - begin, dy + t * lookup.columns + begin, dtable + row * lookup.columns + begin);
  }
}

}  // namespace

void EmbeddingForwardTokens(const EmbeddingLookup& lookup, const void* table, bool accumulate,
                            void* y, int64_t begin, int64_t end) {
  switch (lookup.dtype) {
    case DType::kBFloat16:
      return Forward(lookup, static_cast<const BFloat16*>(table), accumulate,
                     static_cast<BFloat16*>(y), begin, end);
    case DType::kFloat16:
      return Forward(lookup, static_cast<const Float16*>(table), accumulate,
                     static_cast<Float16*>(y), begin, end);
    default:
      return Forward(lookup, static_cast<const float*>(table), accumulate, static_cast<float*>(y),
                     begin, end);
  }
}

void EmbeddingBackwardColumns(const EmbeddingLookup& lookup, const void* dy, float* dtable,
                              int64_t begin, int64_t end) {
  switch (lookup.dtype) {
    case DType::kBFloat16:
      return Backward(lookup, static_cast<const BFloat16*>(dy), dtable, begin, end);
    case DType::kFloat16:
      return Backward(lookup, static_cast<const Float16*>(dy), dtable, begin, end);
    default:
      return Backward(lookup, static_cast<const float*>(dy), dtable, begin, end);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA
