// Predicts the time and the memory of training runs from a table of their models and layouts.
//
//   plan --predict=rows.csv --output=predicted.csv --assume=gpu=A100-80GB,recompute=full
//
// Errors against the measured columns that a table has are printed.

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/predict_rows.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, predict, "", "The table of runs, as CSV with a header.");
ABSL_FLAG(std::string, output, "", "Where to write the table with the predictions.");
ABSL_FLAG(std::string, assume, "",
          "What rows leave out: column=value,column=value. Columns are those of tables, and "
          "implementation.");
ABSL_FLAG(std::string, facts, "",
          "A textproto of hardware, implementations and models in place of the built-in one.");
ABSL_FLAG(std::string, kernels, "",
          "A table of measured products and attention, as CSV, in place of the built-in one.");

namespace megatron {
namespace {

absl::Status Named(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

absl::StatusOr<PlanFacts> ReadFacts() {
  const std::string file = absl::GetFlag(FLAGS_facts);
  if (file.empty()) return ParsePlanFacts(BuiltInPlanFacts());
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            AsInput(ReadFileToString(PosixFileSystem(), file)));
  auto facts = ParsePlanFacts(text);
  if (!facts.ok()) return Named(file, facts.status());
  return facts;
}

absl::StatusOr<MeasuredKernels> ReadKernels() {
  const std::string file = absl::GetFlag(FLAGS_kernels);
  std::string text(BuiltInMeasuredKernels());
  if (!file.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(text, AsInput(ReadFileToString(PosixFileSystem(), file)));
  }
  const auto table = ParseCsv(text);
  if (!table.ok()) return Named(file, table.status());
  auto kernels = MeasuredKernels::Parse(*table);
  if (!kernels.ok()) return Named(file, kernels.status());
  return kernels;
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  const std::string input = absl::GetFlag(FLAGS_predict);
  const std::string output = absl::GetFlag(FLAGS_output);
  if (input.empty() || output.empty()) {
    return absl::InvalidArgumentError("--predict and --output name a table to read and to write");
  }
  auto assumptions = ParseAssumptions(absl::GetFlag(FLAGS_assume));
  if (!assumptions.ok()) return Named("--assume", assumptions.status());
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ReadFacts());
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, ReadKernels());
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            AsInput(ReadFileToString(PosixFileSystem(), input)));
  const auto rows = ParseCsv(text);
  if (!rows.ok()) return Named(input, rows.status());
  const auto predicted = PredictRows(facts, kernels, *rows, *assumptions);
  if (!predicted.ok()) return Named(input, predicted.status());
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(PosixFileSystem(), output, FormatCsv(*predicted)));
  return WriteToStdout(FormatErrors(CompareWithMeasured(*predicted)));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Predicts the time and the memory of training runs.",
                           megatron::Main);
}
