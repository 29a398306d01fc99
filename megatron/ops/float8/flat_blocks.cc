#include "megatron/ops/float8/flat_blocks.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/element_conversion.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

constexpr Float8Format kFormat = Float8Format::kE4M3;

void Check(const Stream& stream, const Tensor& x, const MatrixRun& run, const Tensor& largest) {
  CheckFloating(x);
  CheckContiguous(stream, x, x.dtype(), {x.numel()});
  CheckContiguous(stream, largest, DType::kFloat32, {largest.numel()});
  CHECK_GT(run.columns, 0);
  CHECK_GE(run.begin, 0);
  const int64_t rows = (run.begin + x.numel() + run.columns - 1) / run.columns;
  CHECK_LE(NumFloat8Blocks(rows, run.columns), largest.numel()) << x;
}

// Calls body(i, end, block) for the parts of elements [i, end) of the run that lie in one row and
// in one block.
template <typename Body>
void ForEachPart(const MatrixRun& run, int64_t i, int64_t end, const Body& body) {
  const int64_t across = Float8BlocksAlong(run.columns);
  while (i < end) {
    const int64_t row = (run.begin + i) / run.columns, column = (run.begin + i) % run.columns;
    const int64_t count =
        std::min({end - i, run.columns - column, kFloat8Block - column % kFloat8Block});
    body(i, i + count, row / kFloat8Block * across + column / kFloat8Block);
    i += count;
  }
}

float ScaleOf(float largest, bool power_of_two) {
  const float scale = Float8Scale(kFormat, largest);
  return power_of_two ? Float8PowerOfTwoBelow(scale) : scale;
}

}  // namespace

// Threads take whole rows of blocks, so that each block belongs to one of them.
void AbsMaxOfBlocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                    const Tensor& largest_B) {
  Check(stream, x_N, run, largest_B);
  if (x_N.numel() == 0) return;
  if (RunsOnCuda(stream)) return OnCuda<AbsMaxOfBlocks>(stream, x_N, run, largest_B);
  if (!RunsOnCpu(stream)) return;
  const int64_t elements = kFloat8Block * run.columns;  // of a row of blocks
  const int64_t first = run.begin / elements, last = (run.begin + x_N.numel() - 1) / elements;
  auto* const largest = largest_B.data<float>();
  WithElements(x_N, [&](const auto* x) {
    ParallelElements(stream.pool(), last - first + 1, 1, [&](int64_t begin, int64_t count) {
      const int64_t from = std::max<int64_t>(0, (first + begin) * elements - run.begin);
      const int64_t to = std::min(x_N.numel(), (first + begin + count) * elements - run.begin);
      ForEachPart(run, from, to, [&](int64_t i, int64_t end, int64_t block) {
        for (; i < end; ++i) {
          const float magnitude = std::fabs(ToFloat(x[i]));
          largest[block] = magnitude > largest[block] ? magnitude : largest[block];
        }
      });
    });
  });
}

void EncodeFloat8Blocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& codes_N) {
  Check(stream, x_N, run, largest_B);
  CheckContiguous(stream, codes_N, DType::kUInt8, {x_N.numel()});
  if (x_N.numel() == 0) return;
  if (RunsOnCuda(stream))
    return OnCuda<EncodeFloat8Blocks>(stream, x_N, run, largest_B, power_of_two, codes_N);
  if (!RunsOnCpu(stream)) return;
  const auto* const largest = largest_B.data<float>();
  auto* const codes = codes_N.data<uint8_t>();
  WithElements(x_N, [&](const auto* x) {
    ParallelElements(stream.pool(), x_N.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
      ForEachPart(run, begin, begin + count, [&](int64_t i, int64_t end, int64_t block) {
        const float scale = ScaleOf(largest[block], power_of_two);
        for (; i < end; ++i) codes[i] = FloatToFloat8(kFormat, ToFloat(x[i]) * scale);
      });
    });
  });
}

void DecodeFloat8Blocks(const Stream& stream, const Tensor& codes_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& x_N) {
  Check(stream, x_N, run, largest_B);
  CheckContiguous(stream, codes_N, DType::kUInt8, {x_N.numel()});
  if (x_N.numel() == 0) return;
  if (RunsOnCuda(stream))
    return OnCuda<DecodeFloat8Blocks>(stream, codes_N, run, largest_B, power_of_two, x_N);
  if (!RunsOnCpu(stream)) return;
  const auto* const largest = largest_B.data<float>();
  const auto* const codes = codes_N.data<uint8_t>();
  WithElements(x_N, [&](auto* x) {
    ParallelElements(stream.pool(), x_N.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
      ForEachPart(run, begin, begin + count, [&](int64_t i, int64_t end, int64_t block) {
        const float most = largest[block], scale = ScaleOf(most, power_of_two);
        const float inverse = 1 / scale;
        const uint8_t largest_code = FloatToFloat8(kFormat, most * scale);
        for (; i < end; ++i) {
          const float value = (codes[i] & 0x7f) == largest_code
                                  ? std::copysign(most, (codes[i] & 0x80) != 0 ? -1.0f : 1.0f)
                                  : Float8ToFloat(kFormat, codes[i]) * inverse;
          FromFloat(value, &x[i]);
        }
      });
    });
  });
}

}  // namespace megatron::ops
