// Measured speeds of matrix products, attention and recurrences, by shape.
//
//   MEGATRON_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(BuiltInMeasuredKernels()));
//   MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, MeasuredKernels::Parse(table));
//   absl::optional<double> share =
//       kernels.ShareOfPeak("B200", {"product", "forward", 4096, 8192, 8192});
//
// Columns of the table: gpu, kernel (product, grouped, attention, state_space, gated_delta), pass
// (forward, input_gradient, weight_gradient), m, n, k and share_of_peak. A product's shape is that
// of its forward pass: m tokens (of one group, for grouped ones), n outputs, k inputs. Attention
// has m positions, n heads and k channels of a key; its share counts scores that the causal mask
// hides as work, and all of its backward pass is its input gradient, of 2.5 times the forward
// FLOPs. Recurrences of Mamba-2 layers and gated delta nets have m heads of a group, n channels of
// a head's outputs and k rows of its state; their work is that of RecurrenceCosts
// (hybrid_layers.h), and all of their backward pass is their input gradient. They are computed in
// 32 bits.
#ifndef MEGATRON_PLAN_MEASURED_KERNELS_H_
#define MEGATRON_PLAN_MEASURED_KERNELS_H_

#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "megatron/plan/csv_table.h"

namespace megatron {

struct KernelShape {
  std::string kernel;
  std::string pass;
  double m = 0;
  double n = 0;
  double k = 0;
};

class MeasuredKernels {
 public:
  // Returns kInvalidArgument with the row that has no such kernel or pass, a size below 1, or a
  // share that isn't above 0 and at most 2; or with the column that is missing.
  static absl::StatusOr<MeasuredKernels> Parse(const CsvTable& table);

  // Returns the share of the peak of the measured shape. Of a product that lies between measured
  // sizes, of which all combinations were measured, seconds are linear in m, n and k. Else returns
  // that of the four nearest shapes in the logarithms of m, n and k, weighted by the inverse
  // squares of their distances, or nothing where none lies within a factor of 4 in all.
  absl::optional<double> ShareOfPeak(const std::string& gpu, const KernelShape& shape) const;

 private:
  using Sizes = std::array<double, 3>;
  struct Point {
    Sizes sizes;
    Sizes logs;
    double share;
  };
  static absl::optional<double> ShareBetween(const std::vector<Point>& points, const Sizes& sizes);

  std::map<std::array<std::string, 3>, std::vector<Point>> points_;
};

// The table that the program carries: measured_kernels.csv.
absl::string_view BuiltInMeasuredKernels();

}  // namespace megatron

#endif  // MEGATRON_PLAN_MEASURED_KERNELS_H_
