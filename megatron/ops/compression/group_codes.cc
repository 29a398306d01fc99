#include "megatron/ops/compression/group_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/element_conversion.h"

namespace megatron::ops {
namespace {

constexpr int64_t kMessageAlignment = 16;
// fp32 numbers of this magnitude are integers: adding and subtracting it rounds to the nearest.
constexpr float kRounder = 12582912;  // 1.5 * 2^23

int64_t GroupsOf(CodeBits bits, int64_t elements) {
  return (elements + GroupSize(bits) - 1) / GroupSize(bits);
}

int64_t CodeBytes(CodeBits bits, int64_t elements) {
  return bits == CodeBits::k8 ? elements : (elements + 1) / 2;
}

void Check(const Stream& stream, CodeBits bits, const Tensor& x, const Tensor& message) {
  CheckFloating(x);
  CheckContiguous(stream, x, x.dtype(), {x.numel()});
  CheckContiguous(stream, message, DType::kUInt8, {GroupMessageBytes(bits, x.numel())});
}

// The parts of a message.
struct Parts {
  Parts(CodeBits bits, const Tensor& message, int64_t elements)
      : scales(reinterpret_cast<float*>(message.raw())),
        codes(static_cast<uint8_t*>(message.raw()) +
              GroupsOf(bits, elements) * static_cast<int64_t>(sizeof(float))) {}
  float* scales;
  uint8_t* codes;
};

// Returns the scale of a group; NaN if it has a NaN or an infinity.
template <typename T>
float ScaleOf(const T* x, int64_t count, float largest_code) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(ToFloat(x[i]));
    finite &= magnitude <= std::numeric_limits<float>::max();
    largest = std::max(largest, magnitude);
  }
  return finite ? largest / largest_code : std::numeric_limits<float>::quiet_NaN();
}

template <CodeBits bits, typename T>
void EncodeGroup(const T* x, int64_t count, float* scale, uint8_t* codes) {
  static constexpr float kLargest = bits == CodeBits::k8 ? 127 : 7;
  *scale = ScaleOf(x, count, kLargest);
  if (!(*scale > 0)) {
    std::fill(codes, codes + CodeBytes(bits, count), 0);
    return;
  }
  // The scale of the smallest magnitudes is rounded so much that quotients may be beyond the codes.
  const auto code = [scale = *scale](const T& from) {
    const float quotient = std::clamp(ToFloat(from) / scale, -kLargest, kLargest);
    return static_cast<int32_t>((quotient + kRounder) - kRounder);
  };
  if constexpr (bits == CodeBits::k8) {
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(code(x[i]));
  } else {
    for (int64_t i = 0; i < count / 2; ++i)
      codes[i] = static_cast<uint8_t>((code(x[2 * i]) & 15) | ((code(x[2 * i + 1]) & 15) << 4));
    if (count % 2 != 0) codes[count / 2] = static_cast<uint8_t>(code(x[count - 1]) & 15);
  }
}

// Calls to(i, element) for the elements of a group.
template <CodeBits bits, typename To>
void DecodeGroup(float scale, const uint8_t* codes, int64_t count, const To& to) {
  if constexpr (bits == CodeBits::k8) {
    for (int64_t i = 0; i < count; ++i)
      to(i, static_cast<float>(static_cast<int8_t>(codes[i])) * scale);
  } else {
    const auto element = [scale](int code) {
      return static_cast<float>((code & 15) - ((code & 8) << 1)) * scale;
    };
    for (int64_t i = 0; i < count / 2; ++i) {
      to(2 * i, element(codes[i]));
      to(2 * i + 1, element(codes[i] >> 4));
    }
    if (count % 2 != 0) to(count - 1, element(codes[count / 2]));
  }
}

// Calls body(group, begin, count) for each group of so many elements.
template <typename Body>
void ForEachGroup(const Stream& stream, CodeBits bits, int64_t elements, const Body& body) {
  const int64_t size = GroupSize(bits);
  ParallelElements(stream.pool(), elements, kElementGrain, [&](int64_t begin, int64_t count) {
    for (int64_t at = begin; at < begin + count; at += size)
      body(at / size, at, std::min(size, begin + count - at));
  });
}

template <CodeBits bits, typename T>
void Encode(const Stream& stream, const T* x, int64_t elements, const Tensor& message) {
  const Parts parts(bits, message, elements);
  ForEachGroup(stream, bits, elements, [&](int64_t group, int64_t begin, int64_t count) {
    EncodeGroup<bits>(x + begin, count, parts.scales + group, parts.codes + CodeBytes(bits, begin));
  });
}

template <CodeBits bits, bool adds, typename T>
void Decode(const Stream& stream, const Tensor& message, int64_t elements, T* x) {
  const Parts parts(bits, message, elements);
  ForEachGroup(stream, bits, elements, [&](int64_t group, int64_t begin, int64_t count) {
    T* const to = x + begin;
    DecodeGroup<bits>(parts.scales[group], parts.codes + CodeBytes(bits, begin), count,
                      [to](int64_t i, float element) {
                        FromFloat(adds ? ToFloat(to[i]) + element : element, &to[i]);
                      });
  });
}

}  // namespace

int64_t GroupMessageBytes(CodeBits bits, int64_t elements) {
  return RoundUp(
      GroupsOf(bits, elements) * static_cast<int64_t>(sizeof(float)) + CodeBytes(bits, elements),
      kMessageAlignment);
}

void EncodeGroups(const Stream& stream, CodeBits bits, const Tensor& x_N, const Tensor& message_M) {
  Check(stream, bits, x_N, message_M);
  if (RunsOnCuda(stream)) return OnCuda<EncodeGroups>(stream, bits, x_N, message_M);
  if (!RunsOnCpu(stream)) return;
  WithElements(x_N, [&](const auto* x) {
    bits == CodeBits::k8 ? Encode<CodeBits::k8>(stream, x, x_N.numel(), message_M)
                         : Encode<CodeBits::k4>(stream, x, x_N.numel(), message_M);
  });
}

void DecodeGroups(const Stream& stream, CodeBits bits, const Tensor& message_M, const Tensor& x_N) {
  Check(stream, bits, x_N, message_M);
  if (RunsOnCuda(stream)) return OnCuda<DecodeGroups>(stream, bits, message_M, x_N);
  if (!RunsOnCpu(stream)) return;
  WithElements(x_N, [&](auto* x) {
    bits == CodeBits::k8 ? Decode<CodeBits::k8, false>(stream, message_M, x_N.numel(), x)
                         : Decode<CodeBits::k4, false>(stream, message_M, x_N.numel(), x);
  });
}

void AddDecodedGroups(const Stream& stream, CodeBits bits, const Tensor& message_M,
                      const Tensor& x_N) {
  Check(stream, bits, x_N, message_M);
  CHECK(x_N.dtype() == DType::kFloat32);
  if (RunsOnCuda(stream)) return OnCuda<AddDecodedGroups>(stream, bits, message_M, x_N);
  if (!RunsOnCpu(stream)) return;
  float* const x = x_N.data<float>();
  bits == CodeBits::k8 ? Decode<CodeBits::k8, true>(stream, message_M, x_N.numel(), x)
                       : Decode<CodeBits::k4, true>(stream, message_M, x_N.numel(), x);
}

}  // namespace megatron::ops
