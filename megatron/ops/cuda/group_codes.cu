#include <cfloat>
#include <cmath>
#include <cstdint>

#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops::cuda {
namespace {

// The elements that a thread decodes. Codes of 4 bits are then two whole bytes.
constexpr int kDecoded = 4;

__host__ __device__ constexpr int64_t CodeBytes(CodeBits bits, int64_t elements) {
  return bits == CodeBits::k8 ? elements : (elements + 1) / 2;
}

// Codes lie behind the scales of all groups.
template <CodeBits bits>
__host__ __device__ constexpr int64_t ScaleBytes(int64_t elements) {
  return (elements + GroupSize(bits) - 1) / GroupSize(bits) * int64_t{sizeof(float)};
}

// Each warp encodes a group.
template <CodeBits bits, typename T>
__global__ void __launch_bounds__(kThreads)
    EncodeKernel(int64_t elements, const T* x, uint8_t* message) {
  static constexpr int kGroup = static_cast<int>(GroupSize(bits)), kOfLane = kGroup / kWarp;
  static constexpr float kLargestCode = bits == CodeBits::k8 ? 127 : 7;
  const int lane = threadIdx.x % kWarp;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t begin = group * kGroup;
  if (begin >= elements) return;
  // A lane takes neighbours if their codes share a byte, else every 32nd element.
  float values[kOfLane];
  int64_t place[kOfLane];
  float largest = 0;
  for (int i = 0; i < kOfLane; ++i) {
    place[i] = begin + (bits == CodeBits::k8 ? i * kWarp + lane : lane * kOfLane + i);
    values[i] = place[i] < elements ? ToFloat(x[place[i]]) : 0.0f;
    // A NaN counts as infinity, which the maximum keeps.
    const float magnitude = fabsf(values[i]);
    largest = fmaxf(largest, magnitude <= FLT_MAX ? magnitude : INFINITY);
  }
  largest = WarpMax(largest);
  const float scale = largest <= FLT_MAX ? largest / kLargestCode : __builtin_nanf("");
  if (lane == 0) reinterpret_cast<float*>(message)[group] = scale;
  int codes[kOfLane];
  for (int i = 0; i < kOfLane; ++i) {
    // The scale of the smallest magnitudes is rounded so much that quotients may be beyond the
    // codes.
    const float quotient = fminf(fmaxf(values[i] / scale, -kLargestCode), kLargestCode);
    codes[i] = scale > 0 ? static_cast<int>(rintf(quotient)) : 0;
  }
  uint8_t* const out = message + ScaleBytes<bits>(elements);
  if constexpr (bits == CodeBits::k8) {
    for (int i = 0; i < kOfLane; ++i) {
      if (place[i] < elements) out[place[i]] = static_cast<uint8_t>(codes[i]);
    }
  } else {
    static_assert(kOfLane == 2);
    if (place[0] < elements)
      out[place[0] / 2] = static_cast<uint8_t>((codes[0] & 15) | ((codes[1] & 15) << 4));
  }
}

// The element of code i of the bytes. A product and a sum round apart, as on the CPU.
template <CodeBits bits>
__device__ float Element(const uint8_t* codes, int i, float scale) {
  int code;
  if constexpr (bits == CodeBits::k8) {
    code = static_cast<int8_t>(codes[i]);
  } else {
    const int half = codes[i / 2] >> (i % 2 * 4);
    code = (half & 15) - ((half & 8) << 1);
  }
  return __fmul_rn(static_cast<float>(code), scale);
}

template <CodeBits bits, bool adds, bool vectors, typename T>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(int64_t elements, const uint8_t* message, T* x) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kDecoded;
  if (begin >= elements) return;
  static_assert(GroupSize(bits) % kDecoded == 0);
  const float scale = reinterpret_cast<const float*>(message)[begin / GroupSize(bits)];
  const uint8_t* const codes = message + ScaleBytes<bits>(elements) + CodeBytes(bits, begin);
  const int count = elements - begin < kDecoded ? static_cast<int>(elements - begin) : kDecoded;
  if (vectors && count == kDecoded) {
    const auto bytes = Load<uint8_t, CodeBytes(bits, kDecoded)>(codes, 0);
    Vector<T, kDecoded> out;
    if constexpr (adds) out = Load<T, kDecoded>(x + begin, 0);
    for (int i = 0; i < kDecoded; ++i) {
      const float element = Element<bits>(bytes.values, i, scale);
      out.values[i] = FromFloat<T>(adds ? __fadd_rn(ToFloat(out.values[i]), element) : element);
    }
    Store(x + begin, 0, out);
    return;
  }
  for (int i = 0; i < count; ++i) {
    const float element = Element<bits>(codes, i, scale);
    x[begin + i] = FromFloat<T>(adds ? __fadd_rn(ToFloat(x[begin + i]), element) : element);
  }
}

template <CodeBits bits, bool adds, typename T>
void LaunchDecode(const Stream& stream, const Tensor& message, T* x, int64_t elements) {
  const unsigned blocks = Blocks(elements, int64_t{kThreads} * kDecoded);
  const auto* bytes = static_cast<const uint8_t*>(message.raw());
  IsAligned({x, bytes})
      ? DecodeKernel<bits, adds, true><<<blocks, kThreads, 0, Handle(stream)>>>(elements, bytes, x)
      : DecodeKernel<bits, adds, false>
      <<<blocks, kThreads, 0, Handle(stream)>>>(elements, bytes, x);
  CheckLaunched("decoding of groups");
}

}  // namespace

void EncodeGroups(const Stream& stream, CodeBits bits, const Tensor& x_N, const Tensor& message_M) {
  const int64_t elements = x_N.numel();
  if (elements == 0) return;
  auto* const message = static_cast<uint8_t*>(message_M.raw());
  WithType(x_N.dtype(), [&](auto* type) {
    const auto* x = As(type, x_N);
    const unsigned blocks = Blocks(elements, GroupSize(bits) * kWarps);
    bits == CodeBits::k8
        ? EncodeKernel<CodeBits::k8><<<blocks, kThreads, 0, Handle(stream)>>>(elements, x, message)
        : EncodeKernel<CodeBits::k4><<<blocks, kThreads, 0, Handle(stream)>>>(elements, x, message);
  });
  CheckLaunched("encoding of groups");
}

void DecodeGroups(const Stream& stream, CodeBits bits, const Tensor& message_M, const Tensor& x_N) {
  if (x_N.numel() == 0) return;
  WithType(x_N.dtype(), [&](auto* type) {
    auto* const x = As(type, x_N);
    bits == CodeBits::k8 ? LaunchDecode<CodeBits::k8, false>(stream, message_M, x, x_N.numel())
                         : LaunchDecode<CodeBits::k4, false>(stream, message_M, x, x_N.numel());
  });
}

void AddDecodedGroups(const Stream& stream, CodeBits bits, const Tensor& message_M,
                      const Tensor& x_N) {
  if (x_N.numel() == 0) return;
  auto* const x = static_cast<float*>(x_N.raw());
  bits == CodeBits::k8 ? LaunchDecode<CodeBits::k8, true>(stream, message_M, x, x_N.numel())
                       : LaunchDecode<CodeBits::k4, true>(stream, message_M, x, x_N.numel());
}

MEGATRON_CUDA_KERNEL(EncodeGroups);
MEGATRON_CUDA_KERNEL(DecodeGroups);
MEGATRON_CUDA_KERNEL(AddDecodedGroups);

}  // namespace megatron::ops::cuda
