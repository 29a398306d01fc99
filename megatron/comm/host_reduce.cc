#include "megatron/comm/host_reduce.h"

#include <algorithm>
#include <type_traits>

#include "glog/logging.h"

namespace megatron {
namespace {

// Accumulators of one block stay in the first-level cache.
constexpr int64_t kBlock = 1024;

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
void ReduceBlock(absl::Span<const void* const> inputs, int64_t begin, int64_t count,
                 absl::Span<void* const> outputs) {
  typename Wide<T>::Type sums[kBlock];
  const T* first = static_cast<const T*>(inputs[0]) + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] = Wide<T>::Widen(first[i]);
  for (const void* input : inputs.subspan(1)) {
    const T* values = static_cast<const T*>(input) + begin;
    for (int64_t i = 0; i < count; ++i) sums[i] = Op::Apply(sums[i], Wide<T>::Widen(values[i]));
  }
  T* narrow = static_cast<T*>(outputs[0]) + begin;
  for (int64_t i = 0; i < count; ++i) narrow[i] = Wide<T>::Narrow(sums[i]);
  for (void* output : outputs.subspan(1)) {
    std::copy(narrow, narrow + count, static_cast<T*>(output) + begin);
  }
}

template <typename Op, typename T>
void Reduce(absl::Span<const void* const> inputs, int64_t begin, int64_t end,
            absl::Span<void* const> outputs) {
  for (int64_t at = begin; at < end; at += kBlock) {
    ReduceBlock<Op, T>(inputs, at, std::min(kBlock, end - at), outputs);
  }
}

template <typename T>
void ReduceAs(ReduceOp op, absl::Span<const void* const> inputs, int64_t begin, int64_t end,
              absl::Span<void* const> outputs) {
  switch (op) {
    case ReduceOp::kSum:
      return Reduce<Sum, T>(inputs, begin, end, outputs);
    case ReduceOp::kMax:
      return Reduce<Max, T>(inputs, begin, end, outputs);
    case ReduceOp::kMin:
      return Reduce<Min, T>(inputs, begin, end, outputs);
  }
}

}  // namespace

void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, int64_t begin,
                  int64_t end, absl::Span<void* const> outputs) {
  switch (dtype) {
    case DType::kFloat32:
      return ReduceAs<float>(op, inputs, begin, end, outputs);
    case DType::kBFloat16:
      return ReduceAs<BFloat16>(op, inputs, begin, end, outputs);
    case DType::kFloat16:
      return ReduceAs<Float16>(op, inputs, begin, end, outputs);
    case DType::kInt32:
      return ReduceAs<int32_t>(op, inputs, begin, end, outputs);
    case DType::kInt64:
      return ReduceAs<int64_t>(op, inputs, begin, end, outputs);
    case DType::kUInt8:
      return ReduceAs<uint8_t>(op, inputs, begin, end, outputs);
    case DType::kUInt16:
      return ReduceAs<uint16_t>(op, inputs, begin, end, outputs);
  }
  LOG(FATAL) << "dtype " << static_cast<int>(dtype);
}

}  // namespace megatron
