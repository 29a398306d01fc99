#include "megatron/plan/measured_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr const char* kColumns[] = {"gpu", "kernel", "pass", "m", "n", "k", "share_of_peak"};
constexpr size_t kNeighbours = 4;
constexpr double kFarthest = 1.3862943611198906;  // ln 4
constexpr double kRounding = 1e-9;
constexpr const char *kProduct = "product", *kGrouped = "grouped";

template <size_t size>
bool IsOneOf(const std::string& name, const char* const (&names)[size]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::StatusOr<double> NumberIn(const std::string& cell, double least, double most) {
  double number = 0;
  if (absl::SimpleAtod(cell, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("'", cell, "' is no number from ", least, " to ", most));
}

}  // namespace

absl::StatusOr<MeasuredKernels> MeasuredKernels::Parse(const CsvTable& table) {
  std::vector<size_t> at;
  for (const char* column : kColumns) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    if (found == table.columns.end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no column '", column, "'"));
    }
    at.push_back(found - table.columns.begin());
  }
  MeasuredKernels kernels;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const auto& row = table.rows[i];
    const auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("row ", i + 1, ": ", what));
    };
    if (!IsOneOf(row[at[1]], {kProduct, kGrouped, "attention", "state_space", "gated_delta"})) {
      return error(absl::StrCat("there is no kernel '", row[at[1]], "'"));
    }
    if (!IsOneOf(row[at[2]], {"forward", "input_gradient", "weight_gradient"})) {
      return error(absl::StrCat("there is no pass '", row[at[2]], "'"));
    }
    Point point;
    for (size_t axis = 0; axis < 3; ++axis) {
      const auto size = NumberIn(row[at[3 + axis]], 1, 1e9);
      if (!size.ok()) return error(size.status().message());
      point.sizes[axis] = *size;
      point.logs[axis] = std::log(*size);
    }
    const auto share = NumberIn(row[at[6]], 1e-6, 2);
    if (!share.ok()) return error(share.status().message());
    point.share = *share;
    kernels.points_[{row[at[0]], row[at[1]], row[at[2]]}].push_back(point);
  }
  return kernels;
}

// The nearest measured sizes below and above are the ends of a box around the shape, of which all
// corners are needed.
absl::optional<double> MeasuredKernels::ShareBetween(const std::vector<Point>& points,
                                                     const Sizes& sizes) {
  Sizes below, above;
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    below[axis] = 0;
    above[axis] = INFINITY;
    for (const Point& point : points) {
      const double size = point.sizes[axis];
      if (size <= sizes[axis]) below[axis] = std::max(below[axis], size);
      if (size >= sizes[axis]) above[axis] = std::min(above[axis], size);
    }
    if (below[axis] == 0 || above[axis] == INFINITY) return absl::nullopt;
  }
  const auto work = [](const Sizes& of) { return of[0] * of[1] * of[2]; };
  double seconds = 0, weights = 0;
  for (const Point& point : points) {
    double weight = 1;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      const double size = point.sizes[axis], width = above[axis] - below[axis];
      if (size != below[axis] && size != above[axis]) {
        weight = 0;
      } else if (width > 0) {
        weight *= 1 - std::abs(size - sizes[axis]) / width;
      }
    }
    seconds += weight * work(point.sizes) / point.share;
    weights += weight;
  }
  // A corner that is missing leaves its weight out, and one that is there twice counts twice.
  if (std::abs(weights - 1) > kRounding) return absl::nullopt;
  return work(sizes) / seconds;
}

absl::optional<double> MeasuredKernels::ShareOfPeak(const std::string& gpu,
                                                    const KernelShape& shape) const {
  const auto found = points_.find({gpu, shape.kernel, shape.pass});
  if (found == points_.end()) return absl::nullopt;
  // The work of attention isn't linear in its positions, nor that of recurrences in each size.
  if (shape.kernel == kProduct || shape.kernel == kGrouped) {
    const auto between = ShareBetween(found->second, {shape.m, shape.n, shape.k});
    if (between.has_value()) return between;
  }
  const Sizes logs = {std::log(shape.m), std::log(shape.n), std::log(shape.k)};
  std::vector<std::pair<double, double>> near;  // distances and shares
  for (const Point& point : found->second) {
    double square = 0;
    for (size_t axis = 0; axis < 3; ++axis) {
      square += (point.logs[axis] - logs[axis]) * (point.logs[axis] - logs[axis]);
    }
    near.emplace_back(std::sqrt(square), point.share);
  }
  const size_t count = std::min(kNeighbours, near.size());
  std::partial_sort(near.begin(), near.begin() + count, near.end());
  if (near[0].first > kFarthest) return absl::nullopt;
  if (near[0].first < kRounding) return near[0].second;
  double sum = 0;
  double weights = 0;
  for (size_t i = 0; i < count; ++i) {
    const double weight = 1 / (near[i].first * near[i].first);
    sum += weight * near[i].second;
    weights += weight;
  }
  return sum / weights;
}

}  // namespace megatron
