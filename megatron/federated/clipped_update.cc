#include "megatron/federated/clipped_update.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {

double SquaredNorm(absl::Span<const float> values) {
  // Blocks keep the error of long sums small.
  constexpr size_t kBlock = 4096;
  double sum = 0;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    double block = 0;
    for (const float value : values.subspan(begin, kBlock)) {
      block += static_cast<double>(value) * value;
    }
    sum += block;
  }
  return sum;
}

absl::StatusOr<double> ClipScale(double squared_norm, double clip_norm) {
  CHECK_GT(clip_norm, 0);
  const double norm = std::sqrt(squared_norm);
  if (!std::isfinite(norm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the norm of the update is ", norm, ", which cannot be clipped"));
  }
  constexpr double kMargin = 1 - 1.0 / (1 << 20);
  const double scale = kMargin * (norm > clip_norm ? clip_norm / norm : 1.0);
  // Doubles that differ in their last bits have the same first 24, but for one in 2^28.
  constexpr int kBits = 24;
  int exponent = 0;
  const double fraction = std::frexp(scale, &exponent);
  return std::ldexp(std::floor(std::ldexp(fraction, kBits)), exponent - kBits);
}

absl::Status EncodeUpdate(absl::Span<const float> values, double scale, double clip_norm,
                          absl::Span<uint32_t> encoded) {
  CHECK_EQ(values.size(), encoded.size());
  const double factor = scale * (kUnitsOfClipNorm / clip_norm);
  for (size_t i = 0; i < values.size(); ++i) {
    const double units = std::trunc(values[i] * factor);
    // Written so that it is also true of no number.
    if (!(std::fabs(units) <= kUnitsOfClipNorm)) {
      return absl::InvalidArgumentError(absl::StrCat("element ", i, " of the update is ", values[i],
                                                     ", times ", scale, " more than the clip norm ",
                                                     clip_norm, " or no number"));
    }
    encoded[i] = static_cast<uint32_t>(static_cast<int32_t>(units));
  }
  return absl::OkStatus();
}

}  // namespace megatron
