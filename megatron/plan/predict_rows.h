// Predicts the rows of a table of training runs.
#ifndef MEGATRON_PLAN_PREDICT_ROWS_H_
#define MEGATRON_PLAN_PREDICT_ROWS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// What rows leave out, by column.
using PlanAssumptions = absl::btree_map<std::string, std::string>;

// Reads key=value,key=value. Returns kInvalidArgument for anything else.
absl::StatusOr<PlanAssumptions> ParseAssumptions(const std::string& text);

// Returns the table with predicted_step_s, predicted_tokens_per_s_per_gpu,
// predicted_TFLOPs_per_gpu, predicted_mfu_pct, predicted_memory_GiB, fits, assumed and error.
// `fits` is "yes", or "no" with the memory that there is; `assumed` lists what the row doesn't say.
// A row that can't be predicted, or that the trainer would refuse for what its tensor-parallel
// ranks must share out, has empty cells and its reason in `error`. Returns kInvalidArgument if the
// table has one of these columns.
absl::StatusOr<CsvTable> PredictRows(const PlanFacts& facts, const MeasuredKernels& kernels,
                                     const CsvTable& rows, const PlanAssumptions& assumptions);

// What was measured of a row, and what was predicted, in one unit.
struct ComparedRow {
  double measured = 0;
  double predicted = 0;
};

struct ComparedColumn {
  std::string name;  // the measured one
  std::vector<ComparedRow> rows;
};

// Returns each measured column that CompareWithMeasured() knows, with the rows that were measured
// and predicted, in the table's order.
std::vector<ComparedColumn> ComparedColumns(const CsvTable& predicted);

// Absolute errors of predictions, in percent of what was measured.
struct PredictionErrors {
  std::string column;  // the measured one
  std::string rows;    // all, odd or even; the first row is odd
  size_t count = 0;
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double worst = 0;
};

// Compares a predicted table with each measured column that it has: iteration_s, iteration_ms,
// measured_ms, measured_alloc_GiB, tokens_per_s_per_gpu, model_TFLOPs_per_gpu, mfu_pct. Columns
// without a row that was predicted and measured are left out.
std::vector<PredictionErrors> CompareWithMeasured(const CsvTable& predicted);

// Returns a line for each.
std::string FormatErrors(const std::vector<PredictionErrors>& errors);

}  // namespace megatron

#endif  // MEGATRON_PLAN_PREDICT_ROWS_H_
