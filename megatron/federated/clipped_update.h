// An island's update as integers that are summed modulo 2^32 (secure_sum.h).
//
//   squared norm of each rank's slices -> sum over the island's ranks -> ClipScale -> EncodeUpdate
//
// A unit is clip_norm / 2^23. An element is scaled, divided by the unit in double, and rounded
// towards zero. So no element grows, and the L2 norm of an encoded update is at most 2^23 units.
// The sum of kMostSummedUpdates of them lies within 32 bits with a sign, so it never wraps.
#ifndef MEGATRON_FEDERATED_CLIPPED_UPDATE_H_
#define MEGATRON_FEDERATED_CLIPPED_UPDATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megatron {

constexpr int kMostSummedUpdates = 255;
constexpr int32_t kUnitsOfClipNorm = int32_t{1} << 23;
static_assert(int64_t{kMostSummedUpdates} * kUnitsOfClipNorm <= INT32_MAX, "sums do not wrap");

// Returns the sum of squares, in double and in a fixed order.
double SquaredNorm(absl::Span<const float> values);

// Returns the factor that makes a norm at most clip_norm: 1, or clip_norm / norm. Both are less by
// 2^-20, which covers the roundings of SquaredNorm up to 2^32 elements, and have 24 bits, so that
// the order in which slices were added nearly never makes another factor. Returns kInvalidArgument
// if the norm is no finite number.
absl::StatusOr<double> ClipScale(double squared_norm, double clip_norm);

// `encoded` has the size of `values`. Returns kInvalidArgument, and leaves `encoded` undefined, for
// an element that is larger than the clip norm after scaling, or no number.
absl::Status EncodeUpdate(absl::Span<const float> values, double scale, double clip_norm,
                          absl::Span<uint32_t> encoded);

// Returns the integer that a sum modulo 2^32 stands for.
inline int32_t SignedSum(uint32_t sum) {
  return static_cast<int32_t>(static_cast<int64_t>(sum) -
                              (sum > INT32_MAX ? int64_t{1} << 32 : int64_t{0}));
}

// Returns the value of `units`, divided by the number of islands in the sum.
inline double MeanOfUnits(int64_t units, int islands, double clip_norm) {
  return static_cast<double>(units) * (clip_norm / kUnitsOfClipNorm) / islands;
}

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_CLIPPED_UPDATE_H_
