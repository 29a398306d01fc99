#include "tools/report/numbers.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "tools/pictures/plot_axis.h"

namespace megatron::report {

std::string ShortNumber(double value) { return PlotTickLabel(value); }

std::string ShortDuration(double seconds) {
  if (!(seconds < 1e9)) return "long";
  if (seconds < 60) return absl::StrFormat("%.3g s", seconds);
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

std::string ClockTime(double seconds_since_1970) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                          absl::UnixEpoch() + absl::Seconds(seconds_since_1970),
                          absl::UTCTimeZone());
}

double Quantile(std::vector<double> values, double share) {
  const auto place =
      values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace megatron::report
