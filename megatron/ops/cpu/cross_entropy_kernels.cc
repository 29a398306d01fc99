#include "megatron/ops/cpu/cross_entropy_kernels.h"

#include "megatron/ops/cpu/soft_cap.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// A row is processed in chunks that stay in the first-level cache: one pass for the maximum, one
// for the sum.
constexpr int64_t kChunk = 1024;
// Number of independent chains of sums and maxima.
constexpr int kChains = 4;

constexpr float kLowest = -3e38f;

// Missing lanes of the last, partial vector are read as `fill`.
template <typename T>
MEGATRON_INLINE Vec LoadFilled(const T* p, int64_t count, Vec fill) {
  if (count >= kLanes) return Load(p);
  const int n = static_cast<int>(count);
  return Select(FirstLanes(n), LoadPartial(p, n), fill);
}

template <typename T>
MEGATRON_INLINE float MaxOfChunk(const T* x, int64_t count) {
  const Vec lowest = Set(-__builtin_inff());
  Vec max[kChains] = {lowest, lowest, lowest, lowest};
  int64_t v = 0;
  for (; v + kChains * kLanes <= count; v += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) max[c] = Max(max[c], Load(x + v + c * kLanes));
  }
  for (; v < count; v += kLanes) max[0] = Max(max[0], LoadFilled(x + v, count - v, lowest));
  return MaxOf(Max(Max(max[0], max[1]), Max(max[2], max[3])));
}

// Returns the sum of exp(x - base), lane by lane.
template <typename T>
MEGATRON_INLINE Vec SumOfChunk(const T* x, int64_t count, Vec base) {
  Vec sum[kChains] = {Zero(), Zero(), Zero(), Zero()};
  int64_t v = 0;
  for (; v + kChains * kLanes <= count; v += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] + Exp(Load(x + v + c * kLanes) - base);
  }
  for (; v < count; v += kLanes) {
    sum[0] = sum[0] + Exp(LoadFilled(x + v, count - v, Set(-__builtin_inff())) - base);
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The label's column on this rank, or -1.
int64_t LabelColumn(const CrossEntropyRows& rows, int64_t t) {
  const int64_t column = rows.labels[t] - rows.first_column;
  return column >= 0 && column < rows.counted ? column : -1;
}

template <typename T>
MEGATRON_INLINE float LoadOne(const T* p) {
  return MaxOf(Select(FirstLanes(1), LoadPartial(p, 1), Set(-__builtin_inff())));
}

template <typename T>
void StatisticsRow(const CrossEntropyRows& rows, int64_t t) {
  const T* x = static_cast<const T*>(rows.logits) + t * rows.columns;
  float max = -__builtin_inff();
  Vec sum = Zero();
  for (int64_t begin = 0; begin < rows.counted; begin += kChunk) {
    const int64_t count = rows.counted - begin < kChunk ? rows.counted - begin : kChunk;
    const float chunk_max = MaxOfChunk(x + begin, count);
    const float new_max = chunk_max > max ? chunk_max : max;
    // Minus infinity must not be subtracted from itself.
    const Vec base = Max(Set(new_max), Set(kLowest));
    sum = sum * Exp(Set(max) - base) + SumOfChunk(x + begin, count, base);
    max = new_max;
  }
  rows.max[t] = max;
  rows.sum[t] = Sum(sum);
  const int64_t label = LabelColumn(rows, t);
  rows.target[t] = label < 0 ? 0 : LoadOne(x + label);
}

// Returns the gradient of what became the logit x: `gradient` is that of x.
MEGATRON_INLINE Vec BehindCap(const CrossEntropyRows& rows, Vec x, Vec gradient) {
  return rows.softcap > 0 ? gradient * SoftCapSlope(x, rows.softcap) : gradient;
}

template <typename T>
void BackwardRow(const CrossEntropyRows& rows, int64_t t) {
  T* x = static_cast<T*>(rows.logits) + t * rows.columns;
  const float weight = rows.weight[t];
  if (weight == 0) {
    __builtin_memset(static_cast<void*>(x), 0, static_cast<size_t>(rows.columns) * sizeof(T));
    return;
  }
  const Vec max = Set(rows.max[t]);
  const Vec scale = Set(weight / rows.sum[t]);
  const int64_t label = LabelColumn(rows, t);
  const Vec target = label < 0 ? Zero() : LoadPartial(x + label, 1);
  int64_t v = 0;
  for (; v + kLanes <= rows.counted; v += kLanes) {
    const Vec logit = Load(x + v);
    Store(x + v, BehindCap(rows, logit, Exp(logit - max) * scale));
  }
  if (v < rows.counted) {
    const int n = static_cast<int>(rows.counted - v);
    const Vec logit = LoadPartial(x + v, n);
    StorePartial(x + v, BehindCap(rows, logit, Exp(logit - max) * scale), n);
  }
  __builtin_memset(static_cast<void*>(x + rows.counted), 0,
                   static_cast<size_t>(rows.columns - rows.counted) * sizeof(T));
  if (label < 0) return;
  StorePartial(x + label, BehindCap(rows, target, Exp(target - max) * scale - Set(weight)), 1);
}

template <typename T>
void StatisticsRows(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) StatisticsRow<T>(rows, t);
}

template <typename T>
void BackwardRows(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) BackwardRow<T>(rows, t);
}

}  // namespace

void CrossEntropyStatisticsRows(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case DType::kBFloat16:
      return StatisticsRows<BFloat16>(rows, begin, end);
    case DType::kFloat16:
      return StatisticsRows<Float16>(rows, begin, end);
    default:
      return StatisticsRows<float>(rows, begin, end);
  }
}

void CrossEntropyBackwardRows(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case DType::kBFloat16:
      return BackwardRows<BFloat16>(rows, begin, end);
    case DType::kFloat16:
      return BackwardRows<Float16>(rows, begin, end);
    default:
      return BackwardRows<float>(rows, begin, end);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA
