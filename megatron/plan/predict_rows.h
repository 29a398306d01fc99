// Predicts the rows of a table of training runs.
#ifndef MEGATRON_PLAN_PREDICT_ROWS_H_
#define MEGATRON_PLAN_PREDICT_ROWS_H_

#include <string>

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
// predicted_TFLOPs_per_gpu, predicted_mfu_pct, predicted_memory_GiB, assumed and error. `assumed`
// lists what the row doesn't say. A row that can't be predicted has empty cells and its reason in
// `error`. Returns kInvalidArgument if the table has one of these columns.
absl::StatusOr<CsvTable> PredictRows(const PlanFacts& facts, const MeasuredKernels& kernels,
                                     const CsvTable& rows, const PlanAssumptions& assumptions);

// Returns the errors of a predicted table against its measured column (iteration_s, iteration_ms,
// measured_ms, model_TFLOPs_per_gpu, mfu_pct): rows, mean, median, 90th percentile and the worst.
std::string SummarizeErrors(const CsvTable& predicted);

}  // namespace megatron

#endif  // MEGATRON_PLAN_PREDICT_ROWS_H_
