#include "megatron/comm/host_reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "glog/logging.h"

namespace megatron {
namespace {

// Accumulators of one block stay in the first-level cache.
constexpr int64_t kBlock = 1024;
// The steps of a tree stack one partial sum more each time the ranks double.
constexpr int kMostSums = 16;

template <typename T>
struct Wide {
  using Type = T;
  static T Widen(T value) { return value; }
  static T Narrow(T value) { return value; }
};

template <>
struct Wide<BFloat16> {
  using Type = float;
  static float Widen(BFloat16 value) { return ToFloat(value); }
  static BFloat16 Narrow(float value) { return ToBFloat16(value); }
};

template <>
struct Wide<Float16> {
  using Type = float;
  static float Widen(Float16 value) { return ToFloat(value); }
  static Float16 Narrow(float value) { return ToFloat16(value); }
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // signed overflow is undefined
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

// `a != a` holds for NaN alone; a NaN in b loses every comparison and is taken.
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

template <typename Op, typename T>
void ReduceBlock(absl::Span<const void* const> inputs, absl::Span<const PartialSumStep> steps,
                 typename Wide<T>::Type* sums, int64_t begin, int64_t count,
                 absl::Span<void* const> outputs) {
  using Sums = typename Wide<T>::Type*;
  int depth = 0;
  for (const PartialSumStep& step : steps) {
    if (step.kind == PartialSumStep::kPush) ++depth;
    const Sums top = sums + (depth - 1) * kBlock;
    if (step.kind == PartialSumStep::kMerge) {
      const Sums below = top - kBlock;
      for (int64_t i = 0; i < count; ++i) below[i] = Op::Apply(below[i], top[i]);
      --depth;
      continue;
    }
    const T* values = static_cast<const T*>(inputs[step.rank]) + begin;
    if (step.kind == PartialSumStep::kPush) {
      for (int64_t i = 0; i < count; ++i) top[i] = Wide<T>::Widen(values[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) top[i] = Op::Apply(top[i], Wide<T>::Widen(values[i]));
    }
  }
  T* narrow = static_cast<T*>(outputs[0]) + begin;
  for (int64_t i = 0; i < count; ++i) narrow[i] = Wide<T>::Narrow(sums[i]);
  for (void* output : outputs.subspan(1)) {
    std::copy(narrow, narrow + count, static_cast<T*>(output) + begin);
  }
}

template <typename Op, typename T>
void Reduce(absl::Span<const void* const> inputs, absl::Span<const PartialSumStep> steps,
            int64_t begin, int64_t end, absl::Span<void* const> outputs) {
  typename Wide<T>::Type sums[kMostSums * kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    ReduceBlock<Op, T>(inputs, steps, sums, at, std::min(kBlock, end - at), outputs);
  }
}

template <typename T>
void ReduceAs(ReduceOp op, absl::Span<const void* const> inputs,
              absl::Span<const PartialSumStep> steps, int64_t begin, int64_t end,
              absl::Span<void* const> outputs) {
  switch (op) {
    case ReduceOp::kSum:
      return Reduce<Sum, T>(inputs, steps, begin, end, outputs);
    case ReduceOp::kMax:
      return Reduce<Max, T>(inputs, steps, begin, end, outputs);
    case ReduceOp::kMin:
      return Reduce<Min, T>(inputs, steps, begin, end, outputs);
  }
}

template <typename T>
void WidenAll(const void* values, int64_t count, void* partial) {
  for (int64_t i = 0; i < count; ++i) {
    static_cast<float*>(partial)[i] = Wide<T>::Widen(static_cast<const T*>(values)[i]);
  }
}

template <typename T>
void NarrowAll(const void* partial, int64_t count, void* values) {
  for (int64_t i = 0; i < count; ++i) {
    static_cast<T*>(values)[i] = Wide<T>::Narrow(static_cast<const float*>(partial)[i]);
  }
}

}  // namespace

void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, int64_t begin,
                  int64_t end, absl::Span<void* const> outputs) {
  absl::InlinedVector<PartialSumStep, 16> steps;
  for (size_t i = 0; i < inputs.size(); ++i) {
    steps.push_back({i == 0 ? PartialSumStep::kPush : PartialSumStep::kAdd, static_cast<int>(i)});
  }
  ReduceOnHost(dtype, op, inputs, steps, begin, end, outputs);
}

void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs,
                  absl::Span<const PartialSumStep> steps, int64_t begin, int64_t end,
                  absl::Span<void* const> outputs) {
  CHECK_LE(SumDepth(steps), kMostSums);
  switch (dtype) {
    case DType::kFloat32:
      return ReduceAs<float>(op, inputs, steps, begin, end, outputs);
    case DType::kBFloat16:
      return ReduceAs<BFloat16>(op, inputs, steps, begin, end, outputs);
    case DType::kFloat16:
      return ReduceAs<Float16>(op, inputs, steps, begin, end, outputs);
    case DType::kInt32:
      return ReduceAs<int32_t>(op, inputs, steps, begin, end, outputs);
    case DType::kInt64:
      return ReduceAs<int64_t>(op, inputs, steps, begin, end, outputs);
    case DType::kUInt8:
      return ReduceAs<uint8_t>(op, inputs, steps, begin, end, outputs);
    case DType::kUInt16:
      return ReduceAs<uint16_t>(op, inputs, steps, begin, end, outputs);
  }
  LOG(FATAL) << "dtype " << static_cast<int>(dtype);
}

DType PartialDType(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? DType::kFloat32 : dtype;
}

void ToPartial(DType dtype, const void* values, int64_t count, void* partial) {
  if (dtype == DType::kBFloat16) return WidenAll<BFloat16>(values, count, partial);
  if (dtype == DType::kFloat16) return WidenAll<Float16>(values, count, partial);
  std::memcpy(partial, values, count * SizeOf(dtype));
}

void FromPartial(DType dtype, const void* partial, int64_t count, void* values) {
  if (dtype == DType::kBFloat16) return NarrowAll<BFloat16>(partial, count, values);
  if (dtype == DType::kFloat16) return NarrowAll<Float16>(partial, count, values);
  std::memcpy(values, partial, count * SizeOf(dtype));
}

}  // namespace megatron
