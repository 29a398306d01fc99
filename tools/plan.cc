// Predicts the time and the memory of training runs from a table of their models and layouts.
//
//   plan --predict=rows.csv --output=predicted.csv --assume=gpu=A100-80GB,recompute=full
//
// Errors against the measured columns that a table has are printed.
//
// Searches the fastest layouts of a configuration:
//
//   plan --config=gpt3_857m --gpus=8 --gpu=H100 --output=chosen.textproto

#include <cstdint>
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
#include "tools/plan_search.h"

ABSL_FLAG(std::string, predict, "", "The table of runs, as CSV with a header.");
ABSL_FLAG(std::string, output, "",
          "Where to write the table with the predictions, or the configuration that a "
          "search has chosen.");
ABSL_FLAG(std::string, assume, "",
          "What rows leave out: column=value,column=value. Columns are those of tables, and "
          "implementation.");
ABSL_FLAG(std::string, facts, "",
          "A textproto of hardware, implementations and models in place of the built-in one.");
ABSL_FLAG(std::string, kernels, "",
          "A table of measured products and attention, as CSV, in place of the built-in one.");
ABSL_FLAG(std::string, config, "",
          "A configuration, as a file or by its shipped name, whose layouts to search.");
ABSL_FLAG(std::vector<std::string>, set, {},
          "Changes to the configuration: path=value,path=value.");
ABSL_FLAG(int64_t, gpus, 0, "The number of GPUs to divide the model over.");
ABSL_FLAG(std::string, gpu, "H100", "The kind of GPU: a name of the hardware among the facts.");
ABSL_FLAG(double, memory_limit, 0, "GiB of a GPU that a layout may take; 0: 95 % of them.");
ABSL_FLAG(int, best, 5, "The number of layouts to print.");

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

absl::Status Search() {
  PlanSearchOptions options;
  options.config = absl::GetFlag(FLAGS_config);
  options.overrides = absl::GetFlag(FLAGS_set);
  options.gpus = absl::GetFlag(FLAGS_gpus);
  options.gpu = absl::GetFlag(FLAGS_gpu);
  options.memory_gib = absl::GetFlag(FLAGS_memory_limit);
  options.best = absl::GetFlag(FLAGS_best);
  options.output = absl::GetFlag(FLAGS_output);
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ReadFacts());
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, ReadKernels());
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, SearchPlan(options, facts, kernels));
  return WriteToStdout(text);
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  if (!absl::GetFlag(FLAGS_config).empty()) return Search();
  const std::string input = absl::GetFlag(FLAGS_predict);
  const std::string output = absl::GetFlag(FLAGS_output);
  if (input.empty() || output.empty()) {
    return absl::InvalidArgumentError(
        "--predict and --output name a table to read and to write, --config and --gpus "
        "what to search");
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
