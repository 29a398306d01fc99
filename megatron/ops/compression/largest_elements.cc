#include "megatron/ops/compression/largest_elements.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"

namespace megatron::ops {
namespace {

// Magnitudes are in the order of their bits: a NaN comes behind infinity, and that behind all
// numbers. The first digit is the upper 16 of the 31 bits, the second one the others.
constexpr int kSecondBits = 15;

uint32_t Magnitude(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

// Returns how many elements have each digit, where digit(magnitude) is less than `digits`, or
// negative for elements that don't count.
template <typename Digit>
std::vector<int64_t> CountDigits(const Stream& stream, const float* x, int64_t count, int digits,
                                 const Digit& digit) {
  std::vector<int64_t> counts(digits, 0);
  absl::Mutex mutex;
  // Grains that are as long as the counts, which every piece adds up.
  ParallelElements(stream.pool(), count, 1 << 18, [&](int64_t begin, int64_t size) {
    std::vector<int64_t> mine(digits, 0);
    for (int64_t i = begin; i < begin + size; ++i) {
      const int at = digit(Magnitude(x[i]));
      if (at >= 0) ++mine[at];
    }
    absl::MutexLock lock(&mutex);
    for (int i = 0; i < digits; ++i) counts[i] += mine[i];
  });
  return counts;
}

// Returns the largest digit of which, with all digits above, there are at least *wanted, and takes
// the number of those above off *wanted.
int DigitOf(const std::vector<int64_t>& counts, int64_t* wanted) {
  int digit = static_cast<int>(counts.size()) - 1;
  for (; counts[digit] < *wanted; --digit) *wanted -= counts[digit];
  return digit;
}

}  // namespace

void TakeLargest(const Stream& stream, const Tensor& x_N, const Tensor& indices_K,
                 const Tensor& values_K) {
  const int64_t count = x_N.numel(), taken = values_K.numel();
  CheckContiguous(stream, x_N, DType::kFloat32, {count});
  CheckContiguous(stream, values_K, DType::kFloat32, {taken});
  CheckContiguous(stream, indices_K, DType::kInt32, {taken});
  CHECK(taken <= count && count <= std::numeric_limits<int32_t>::max()) << taken << " " << count;
  if (stream.is_meta() || taken == 0) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  float* const x = x_N.data<float>();
  // The magnitude of the smallest element that is taken, and how many of that magnitude are.
  int64_t equals = taken;
  const int first = DigitOf(CountDigits(stream, x, count, 1 << (31 - kSecondBits),
                                        [](uint32_t m) { return int(m >> kSecondBits); }),
                            &equals);
  const int second = DigitOf(
      CountDigits(stream, x, count, 1 << kSecondBits,
                  [first](uint32_t m) {
                    return int(m >> kSecondBits) == first ? int(m & ((1u << kSecondBits) - 1)) : -1;
                  }),
      &equals);
  const uint32_t smallest = (static_cast<uint32_t>(first) << kSecondBits) | second;
  // Each tile's elements of that magnitude and above it, and then where its own begin.
  struct Tile {
    int64_t equal = 0, larger = 0;
  };
  constexpr int64_t kTile = 8 * kElementGrain;
  std::vector<Tile> tiles((count + kTile - 1) / kTile);
  const auto for_each_tile = [&](const auto& body) {
    stream.pool()->ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile)
        body(tile * kTile, std::min(count, (tile + 1) * kTile), &tiles[tile]);
    });
  };
  for_each_tile([&](int64_t begin, int64_t end, Tile* tile) {
    for (int64_t i = begin; i < end; ++i) {
      tile->equal += Magnitude(x[i]) == smallest;
      tile->larger += Magnitude(x[i]) > smallest;
    }
  });
  Tile before;
  for (Tile& tile : tiles) {
    const Tile own = tile;
    tile = before;
    before.equal += own.equal;
    before.larger += own.larger;
  }
  auto* const indices = indices_K.data<int32_t>();
  auto* const values = values_K.data<float>();
  for_each_tile([&](int64_t begin, int64_t end, Tile* tile) {
    Tile at = *tile;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t magnitude = Magnitude(x[i]);
      if (magnitude < smallest) continue;
      const bool is_equal = magnitude == smallest;
      if (is_equal && at.equal++ >= equals) continue;
      // In front are all larger elements, and of the equal ones those that are taken.
      const int64_t place = at.larger + std::min(equals, at.equal) - (is_equal ? 1 : 0);
      at.larger += is_equal ? 0 : 1;
      indices[place] = static_cast<int32_t>(i);
      values[place] = x[i];
      x[i] = 0;
    }
  });
}

int64_t CountAbove(const Stream& stream, const Tensor& x_N, float threshold) {
  CheckContiguous(stream, x_N, DType::kFloat32, {x_N.numel()});
  CHECK_GE(threshold, 0);
  if (stream.is_meta()) return 0;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  const float* const x = x_N.data<float>();
  const uint32_t limit = Magnitude(threshold);
  std::atomic<int64_t> above = 0;
  ParallelElements(stream.pool(), x_N.numel(), kElementGrain, [&](int64_t begin, int64_t size) {
    int64_t mine = 0;
    for (int64_t i = begin; i < begin + size; ++i) mine += Magnitude(x[i]) > limit;
    above += mine;
  });
  return above;
}

void AddAtIndices(const Stream& stream, const Tensor& indices_K, const Tensor& values_K,
                  const Tensor& x_N) {
  const int64_t count = values_K.numel();
  CheckContiguous(stream, indices_K, DType::kInt32, {count});
  CheckContiguous(stream, values_K, DType::kFloat32, {count});
  CheckContiguous(stream, x_N, DType::kFloat32, {x_N.numel()});
  if (stream.is_meta()) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  const auto* const indices = indices_K.data<int32_t>();
  const auto* const values = values_K.data<float>();
  float* const x = x_N.data<float>();
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i) {
      CHECK(0 <= indices[i] && indices[i] < x_N.numel() && (i == 0 || indices[i - 1] < indices[i]))
          << "index " << i << " is " << indices[i];
      x[indices[i]] += values[i];
    }
  });
}

}  // namespace megatron::ops
