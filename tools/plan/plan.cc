// Predicts the time and the memory of training runs from a table of their models and layouts,
// searches the fastest layouts of a configuration, or explains the step of one.
//
//   plan --predict=rows.csv --output=predicted.csv --assume=gpu=A100-80GB,recompute=full
//   plan --config=gpt3_857m --gpus=8 --gpu=H100 --output=chosen.textproto
//   plan --explain=gpt3_857m --gpu=H100 --price=2.5 --watts=1000 --html=page.html
//   plan --guide=layout_guide.md
//
// Errors against the measured columns that a table has are printed.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/predict_rows.h"
#include "tools/common/tool_main.h"
#include "tools/plan/layout_guide.h"
#include "tools/plan/plan_explain.h"
#include "tools/plan/plan_search.h"
#include "tools/plan/predicted_chart.h"

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
          "A configuration, by its file or shipped name, whose layouts to search.");
ABSL_FLAG(std::string, explain, "",
          "A configuration, by its file or shipped name: prints what a step of it costs, and why.");
ABSL_FLAG(std::string, guide, "",
          "Where to write a page with the fastest layouts of models of many sizes, in Markdown.");
ABSL_FLAG(std::vector<std::string>, set, {}, "Fields of the configuration to change: a.b=c,...");
ABSL_FLAG(std::string, gpu, "H100", "The GPU: a name of the hardware among the facts.");
ABSL_FLAG(
    int64_t, gpus, 0,
    "The number of GPUs. For --explain parallel.data_parallel_size follows from it; 0: that of "
    "the configuration.");
ABSL_FLAG(double, memory_limit, 0,
          "GiB of a GPU that a searched layout may take; 0: 95 % of what it has.");
ABSL_FLAG(std::optional<double>, host_memory_limit, std::nullopt,
          "GiB of the host's memory that a GPU of a searched layout may take; 0: nothing lies "
          "there. Without it, 90 % of a GPU's share.");
ABSL_FLAG(int, best, 5, "The number of searched layouts to print.");
ABSL_FLAG(std::string, program, "megatron_cc",
          "The implementation among the facts whose efficiencies --explain takes.");
ABSL_FLAG(double, price, 0, "Dollars of a GPU's hour.");
ABSL_FLAG(double, watts, 0, "Watts of a GPU with its share of the machine.");
ABSL_FLAG(double, tokens, 0, "Tokens of the whole run; 0: those of train.train_iters steps.");
ABSL_FLAG(std::string, html, "", "Where to write what --explain finds as a page with pictures.");
ABSL_FLAG(
    std::string, picture, "",
    "Where to write an SVG picture: of what --predict finds beside what was measured, or of the "
    "step that --explain simulates.");
ABSL_FLAG(std::string, timeline, "",
          "Where to write the simulated step as a trace for ui.perfetto.dev.");
ABSL_FLAG(std::string, measured, "",
          "The profile of a run (logging.profile_dir), whose last step stands beside the simulated "
          "one in --timeline, --html and --picture.");

namespace megatron {
namespace {

// Returns the values of --set, which was cut at all commas: those in a list or in quotes belong to
// one value.
std::vector<std::string> Overrides() {
  std::vector<std::string> overrides;
  bool is_open = false;
  for (const std::string& piece : absl::GetFlag(FLAGS_set)) {
    if (is_open) {
      absl::StrAppend(&overrides.back(), ",", piece);
    } else {
      overrides.push_back(piece);
    }
    const std::string& value = overrides.back();
    const auto count = [&](char c) { return std::count(value.begin(), value.end(), c); };
    is_open = count('[') > count(']') || count('"') % 2 == 1;
  }
  return overrides;
}

ExplainArguments ToExplainArguments() {
  ExplainArguments arguments;
  arguments.config = absl::GetFlag(FLAGS_explain);
  arguments.set = Overrides();
  arguments.gpu = absl::GetFlag(FLAGS_gpu);
  arguments.program = absl::GetFlag(FLAGS_program);
  arguments.gpus = absl::GetFlag(FLAGS_gpus);
  arguments.price = absl::GetFlag(FLAGS_price);
  arguments.watts = absl::GetFlag(FLAGS_watts);
  arguments.tokens = absl::GetFlag(FLAGS_tokens);
  arguments.html = absl::GetFlag(FLAGS_html);
  arguments.timeline = absl::GetFlag(FLAGS_timeline);
  arguments.measured = absl::GetFlag(FLAGS_measured);
  arguments.picture = absl::GetFlag(FLAGS_picture);
  return arguments;
}

// What the program is asked to do. A search is asked for by --config.
enum Mode { kPredict = 1, kSearch = 2, kExplain = 4, kGuide = 8 };

struct ModeFlag {
  const char* name;
  int modes;
};

// The flags that have no effect in some mode.
constexpr ModeFlag kModeFlags[] = {{"output", kPredict | kSearch},
                                   {"assume", kPredict},
                                   {"picture", kPredict | kExplain},
                                   {"set", kSearch | kExplain},
                                   {"gpu", kSearch | kExplain},
                                   {"gpus", kSearch | kExplain},
                                   {"memory_limit", kSearch},
                                   {"host_memory_limit", kSearch},
                                   {"best", kSearch},
                                   {"program", kExplain},
                                   {"price", kExplain},
                                   {"watts", kExplain},
                                   {"tokens", kExplain},
                                   {"html", kExplain},
                                   {"timeline", kExplain},
                                   {"measured", kExplain}};

std::string ModeNames(int modes) {
  std::vector<std::string> names;
  if (modes & kPredict) names.push_back("--predict");
  if (modes & kSearch) names.push_back("--config (a search)");
  if (modes & kExplain) names.push_back("--explain");
  if (modes & kGuide) names.push_back("--guide");
  return absl::StrJoin(names, " and ");
}

// Refuses flags of other modes.
absl::Status CheckFlagsOf(Mode mode) {
  for (const ModeFlag& flag : kModeFlags) {
    const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag.name);
    CHECK(found != nullptr) << flag.name;
    if ((flag.modes & mode) || found->CurrentValue() == found->DefaultValue()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag.name, " belongs to ",
                                                   ModeNames(flag.modes), ", and has no effect in ",
                                                   ModeNames(mode)));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers() {
  const std::pair<const char*, double> numbers[] = {{"--price", absl::GetFlag(FLAGS_price)},
                                                    {"--watts", absl::GetFlag(FLAGS_watts)},
                                                    {"--tokens", absl::GetFlag(FLAGS_tokens)}};
  for (const auto& [flag, value] : numbers) {
    if (!(value >= 0 && value <= 1e30)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, "=", value, " is not between 0 and 1e30"));
    }
  }
  return absl::OkStatus();
}

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
  if (facts->implementation_size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file,
                     " has no entry 'implementation': a prediction needs a program's efficiencies "
                     "beside the hardware, as tools:calibrate writes them"));
  }
  return facts;
}

// Checks that the facts have the entries of --gpu and of --program, of which a search takes the
// default. An error names the file of facts.
absl::Status CheckEntries(const PlanFacts& facts) {
  const std::string file = absl::GetFlag(FLAGS_facts);
  if (file.empty()) return absl::OkStatus();
  for (const absl::Status& found :
       {FindHardware(facts, absl::GetFlag(FLAGS_gpu)).status(),
        FindImplementation(facts, absl::GetFlag(FLAGS_program)).status()}) {
    if (!found.ok()) return Named(file, absl::InvalidArgumentError(found.message()));
  }
  return absl::OkStatus();
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

// Draws the first measured column of the table.
absl::Status WritePicture(const std::string& input, const CsvTable& predicted) {
  const std::string file = absl::GetFlag(FLAGS_picture);
  if (file.empty()) return absl::OkStatus();
  const std::vector<ComparedColumn> columns = ComparedColumns(predicted);
  if (columns.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--picture: ", input, " has no measured column, or no predicted row"));
  }
  return WriteFileAtomically(PosixFileSystem(), file,
                             PredictedChart(input.substr(input.rfind('/') + 1), columns[0]));
}

absl::Status Search() {
  PlanSearchOptions options;
  options.config = absl::GetFlag(FLAGS_config);
  options.overrides = Overrides();
  options.gpus = absl::GetFlag(FLAGS_gpus);
  options.gpu = absl::GetFlag(FLAGS_gpu);
  options.memory_gib = absl::GetFlag(FLAGS_memory_limit);
  options.host_memory_gib = absl::GetFlag(FLAGS_host_memory_limit);
  options.best = absl::GetFlag(FLAGS_best);
  options.output = absl::GetFlag(FLAGS_output);
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ReadFacts());
  MEGATRON_RETURN_IF_ERROR(CheckEntries(facts));
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, ReadKernels());
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, SearchPlan(options, facts, kernels));
  return WriteToStdout(text);
}

absl::Status Guide() {
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ReadFacts());
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, ReadKernels());
  MEGATRON_ASSIGN_OR_RETURN(const std::string page, LayoutGuide(facts, kernels, {}));
  return WriteFileAtomically(PosixFileSystem(), absl::GetFlag(FLAGS_guide), page);
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  if (!absl::GetFlag(FLAGS_explain).empty() + !absl::GetFlag(FLAGS_config).empty() +
          !absl::GetFlag(FLAGS_predict).empty() + !absl::GetFlag(FLAGS_guide).empty() >
      1) {
    return absl::InvalidArgumentError("give one of --config, --explain, --guide and --predict");
  }
  MEGATRON_RETURN_IF_ERROR(CheckNumbers());
  if (!absl::GetFlag(FLAGS_explain).empty()) {
    MEGATRON_RETURN_IF_ERROR(CheckFlagsOf(kExplain));
    MEGATRON_ASSIGN_OR_RETURN(const PlanFacts facts, ReadFacts());
    MEGATRON_RETURN_IF_ERROR(CheckEntries(facts));
    MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, ReadKernels());
    return ExplainPlan(ToExplainArguments(), facts, kernels);
  }
  if (!absl::GetFlag(FLAGS_config).empty()) {
    MEGATRON_RETURN_IF_ERROR(CheckFlagsOf(kSearch));
    return Search();
  }
  if (!absl::GetFlag(FLAGS_guide).empty()) {
    MEGATRON_RETURN_IF_ERROR(CheckFlagsOf(kGuide));
    return Guide();
  }
  const std::string input = absl::GetFlag(FLAGS_predict);
  const std::string output = absl::GetFlag(FLAGS_output);
  if (input.empty() || output.empty()) {
    return absl::InvalidArgumentError(
        "--predict and --output name a table to read and to write; --config, a configuration whose "
        "layouts to search; --explain, one to explain");
  }
  MEGATRON_RETURN_IF_ERROR(CheckFlagsOf(kPredict));
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
  MEGATRON_RETURN_IF_ERROR(WritePicture(input, *predicted));
  return WriteToStdout(FormatErrors(CompareWithMeasured(*predicted)));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Predicts the time and the memory of training runs.",
                           megatron::Main);
}
