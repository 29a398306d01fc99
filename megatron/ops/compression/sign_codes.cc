#include "megatron/ops/compression/sign_codes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"

namespace megatron::ops {
namespace {

void CheckRunsOnCpu(const Stream& stream) {
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
}

// The sum is that of tiles, in their order, so that it does not depend on the number of threads.
double SumOfSquaresOf(const Stream& stream, const float* x, int64_t count) {
  std::vector<double> sums((count + kElementGrain - 1) / kElementGrain, 0);
  stream.pool()->ParallelFor(static_cast<int64_t>(sums.size()), [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t last = std::min(count, (tile + 1) * kElementGrain);
      for (int64_t i = tile * kElementGrain; i < last; ++i)
        sums[tile] += static_cast<double>(x[i]) * x[i];
    }
  });
  double sum = 0;
  for (const double tile : sums) sum += tile;
  return sum;
}

}  // namespace

void EncodeSigns(const Stream& stream, const Tensor& x_N, const Tensor& codes,
                 const Tensor& scale_1) {
  const int64_t count = x_N.numel();
  CHECK_EQ(count % 8, 0);
  CheckContiguous(stream, x_N, DType::kFloat32, {count});
  CheckContiguous(stream, codes, DType::kUInt8, {count / 8});
  CheckContiguous(stream, scale_1, DType::kFloat32, {1});
  if (stream.is_meta()) return;
  CheckRunsOnCpu(stream);
  float* const x = x_N.data<float>();
  auto* const bytes = codes.data<uint8_t>();
  const auto scale = static_cast<float>(std::sqrt(
      SumOfSquaresOf(stream, x, count) / static_cast<double>(std::max<int64_t>(count, 1))));
  *scale_1.data<float>() = scale;
  ParallelElements(stream.pool(), count / 8, kElementGrain / 8, [&](int64_t begin, int64_t size) {
    for (int64_t byte = begin; byte < begin + size; ++byte) {
      uint32_t code = 0;
      for (int64_t i = byte * 8; i < byte * 8 + 8; ++i) {
        const bool positive = x[i] >= 0;
        code = code << 1 | (positive ? 1 : 0);
        x[i] = positive ? x[i] - scale : x[i] + scale;
      }
      bytes[byte] = static_cast<uint8_t>(code);
    }
  });
}

void AddSigns(const Stream& stream, const Tensor& codes, const Tensor& scale_1, float divisor,
              const Tensor& x_N, int first) {
  const int64_t count = x_N.numel();
  CHECK(first >= 0 && first < 8) << first;
  CheckContiguous(stream, x_N, DType::kFloat32, {count});
  CheckContiguous(stream, codes, DType::kUInt8, {(first + count + 7) / 8});
  CheckContiguous(stream, scale_1, DType::kFloat32, {1});
  if (stream.is_meta()) return;
  CheckRunsOnCpu(stream);
  float* const x = x_N.data<float>();
  const auto* const bytes = codes.data<uint8_t>();
  const float step = *scale_1.data<float>() / divisor;
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i)
      x[i] += (bytes[(first + i) / 8] >> (7 - (first + i) % 8) & 1) != 0 ? step : -step;
  });
}

void ZeroWhereZero(const Stream& stream, const Tensor& other_N, const Tensor& x_N) {
  const int64_t count = x_N.numel();
  CheckContiguous(stream, x_N, DType::kFloat32, {count});
  CheckContiguous(stream, other_N, DType::kFloat32, {count});
  if (stream.is_meta()) return;
  CheckRunsOnCpu(stream);
  float* const x = x_N.data<float>();
  const auto* const other = other_N.data<float>();
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i) x[i] = other[i] == 0 ? 0 : x[i];
  });
}

}  // namespace megatron::ops
