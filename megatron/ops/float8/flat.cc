#include "megatron/ops/float8/flat.h"

#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/element_conversion.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

constexpr Float8Format kFormat = Float8Format::kE4M3;

void Check(const Stream& stream, const Tensor& x, const Tensor& amax, const Tensor& codes) {
  CheckFloating(x);
  CheckContiguous(stream, x, x.dtype(), {x.numel()});
  CheckContiguous(stream, codes, DType::kUInt8, {x.numel()});
  CheckContiguous(stream, amax, DType::kFloat32, {1});
}

template <typename T>
void Encode(const Stream& stream, const T* x, float scale, const Tensor& codes_N) {
  auto* const codes = codes_N.data<uint8_t>();
  ParallelElements(stream.pool(), codes_N.numel(), kElementGrain,
                   [&](int64_t begin, int64_t count) {
                     for (int64_t i = begin; i < begin + count; ++i)
                       codes[i] = FloatToFloat8(kFormat, ToFloat(x[i]) * scale);
                   });
}

template <typename T>
void Decode(const Stream& stream, const Tensor& codes_N, float inverse, T* x) {
  const auto* const codes = codes_N.data<uint8_t>();
  ParallelElements(stream.pool(), codes_N.numel(), kElementGrain,
                   [&](int64_t begin, int64_t count) {
                     for (int64_t i = begin; i < begin + count; ++i)
                       FromFloat(Float8ToFloat(kFormat, codes[i]) * inverse, &x[i]);
                   });
}

}  // namespace

void EncodeFloat8(const Stream& stream, const Tensor& x_N, const Tensor& amax_1,
                  const Tensor& codes_N) {
  Check(stream, x_N, amax_1, codes_N);
  if (RunsOnCuda(stream)) return OnCuda<EncodeFloat8>(stream, x_N, amax_1, codes_N);
  if (!RunsOnCpu(stream)) return;
  const float scale = Float8Scale(kFormat, *amax_1.data<float>());
  WithElements(x_N, [&](const auto* x) { Encode(stream, x, scale, codes_N); });
}

void DecodeFloat8(const Stream& stream, const Tensor& codes_N, const Tensor& amax_1,
                  const Tensor& x_N) {
  Check(stream, x_N, amax_1, codes_N);
  if (RunsOnCuda(stream)) return OnCuda<DecodeFloat8>(stream, codes_N, amax_1, x_N);
  if (!RunsOnCpu(stream)) return;
  const float inverse = 1 / Float8Scale(kFormat, *amax_1.data<float>());
  WithElements(x_N, [&](auto* x) { Decode(stream, codes_N, inverse, x); });
}

}  // namespace megatron::ops
