// Runs 40 layouts of three small models on this machine's cores, and prints what tools:plan
// predicts beside what a step takes.
//
//   calibrate --output=hardware.textproto --kernels_output=kernels.csv
//   planner_check --facts=hardware.textproto --kernels=kernels.csv --results=runs.csv
//
// Runs are interleaved: all layouts once, then all again. --results keeps them, so that a later
// call goes on where --seconds ended an earlier one. A run that other processes disturbed, or whose
// cores were slower than when they were calibrated, is repeated. Two constants are fitted on every
// fourth layout; the table has the errors before that, too.

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/own_program.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/planned_run.h"
#include "tools/calibration/check_layouts.h"
#include "tools/calibration/check_report.h"
#include "tools/calibration/measure_cores.h"
#include "tools/calibration/other_work.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, facts, "hardware.textproto", "The hardware, as calibrate writes it.");
ABSL_FLAG(std::string, kernels, "kernels.csv", "The measured kernels, as calibrate writes them.");
ABSL_FLAG(std::string, results, "", "Where runs are kept: a CSV that is read, and added to.");
ABSL_FLAG(double, seconds, 600, "No run begins after so many seconds.");
ABSL_FLAG(int, rounds, 5, "Runs of each layout.");
ABSL_FLAG(std::string, only, "", "Run layouts of this model alone: gpt, llama or mixture.");

namespace megatron {
namespace {

constexpr const char* kProgram = "megatron_cc";
constexpr int64_t kPaddedVocab = 384;  // bytes and special tokens
constexpr const char* kStepText = "elapsed time per iteration (ms): ";
// A run beside which others had a larger share of the cores is tried again.
constexpr double kDisturbed = 0.04;
// So is one before or after which the cores had lost more of their calibrated speed.
constexpr double kSlow = 0.1;
constexpr double kProbeSeconds = 0.1;
constexpr int kTries = 4;
constexpr int kFirstSteps = 3;
constexpr const char* kColumns = "model,layout,step_s";

using Results = std::map<std::pair<std::string, std::string>, std::vector<double>>;

struct Facts {
  PlanFacts facts;
  MeasuredKernels kernels;
  const Hardware& hardware() const { return facts.hardware(0); }
};

absl::StatusOr<std::string> ReadInput(const std::string& file) {
  return AsInput(ReadFileToString(PosixFileSystem(), file));
}

absl::StatusOr<Facts> ReadFacts() {
  Facts facts;
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadInput(absl::GetFlag(FLAGS_facts)));
  MEGATRON_ASSIGN_OR_RETURN(facts.facts, ParsePlanFacts(text));
  if (facts.facts.hardware_size() == 0) {
    return absl::InvalidArgumentError("--facts has no hardware: let tools:calibrate write it");
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::string table, ReadInput(absl::GetFlag(FLAGS_kernels)));
  MEGATRON_ASSIGN_OR_RETURN(const CsvTable csv, ParseCsv(table));
  MEGATRON_ASSIGN_OR_RETURN(facts.kernels, MeasuredKernels::Parse(csv));
  return facts;
}

absl::StatusOr<Results> ReadResults(const std::string& file) {
  Results results;
  if (file.empty()) return results;
  const auto text = ReadFileToString(PosixFileSystem(), file);
  if (absl::IsNotFound(text.status())) return results;
  MEGATRON_RETURN_IF_ERROR(text.status());
  MEGATRON_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(*text));
  for (const auto& row : table.rows) {
    double seconds = 0;
    if (row.size() != 3 || !absl::SimpleAtod(row[2], &seconds) || !(seconds > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": rows are ", kColumns));
    }
    results[{row[0], row[1]}].push_back(seconds);
  }
  return results;
}

absl::Status WriteResults(const std::string& file, const Results& results) {
  if (file.empty()) return absl::OkStatus();
  CsvTable table;
  table.columns = absl::StrSplit(kColumns, ',');
  for (const auto& [layout, runs] : results) {
    for (double seconds : runs) {
      table.rows.push_back({layout.first, layout.second, absl::StrCat(seconds)});
    }
  }
  return WriteFileAtomically(PosixFileSystem(), file, FormatCsv(table));
}

const std::string& ConfigOf(const std::string& model) {
  const auto& models = CheckedModels();
  return std::find_if(models.begin(), models.end(),
                      [&](const CheckedModel& checked) { return checked.name == model; })
      ->config;
}

// The training program lies beside this one in the build.
std::string TrainingProgram() {
  const std::string own = OwnProgram();
  return absl::StrCat(own.substr(0, own.rfind("/tools/")), "/megatron/train/pretrain_gpt");
}

// Returns the median of the steps after the first few, in seconds. A program's first steps take
// longer, as long as memory comes from the system and threads find their cores.
absl::StatusOr<double> RunLayout(const CheckedLayout& layout, const std::string& config_file) {
  std::string command = absl::StrCat("'", TrainingProgram(), "' --config='", config_file, "'");
  for (const std::string& field : layout.overrides) absl::StrAppend(&command, " --set=", field);
  absl::StrAppend(&command, " 2>&1");
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("can't start ", command));
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe.get())) {
    output.append(buffer, count);
  }
  std::vector<double> steps;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find(kStepText);
    if (at == absl::string_view::npos) continue;
    const absl::string_view rest = line.substr(at + std::char_traits<char>::length(kStepText));
    double milliseconds = 0;
    if (absl::SimpleAtod(rest.substr(0, rest.find(' ')), &milliseconds)) {
      steps.push_back(milliseconds * 1e-3);
    }
  }
  if (pclose(pipe.release()) != 0 || steps.size() <= kFirstSteps) {
    return absl::InternalError(absl::StrCat(layout.model, " ", layout.name, " failed:\n", output));
  }
  return MedianOf(std::vector<double>(steps.begin() + kFirstSteps, steps.end()));
}

// Returns the rate of a core in the probe's product when it was calibrated.
absl::StatusOr<double> CalibratedRate(const Facts& facts) {
  const auto share = facts.kernels.ShareOfPeak(facts.hardware().name(), ProbeShape());
  if (!share.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kernels has no product near that of the probe for '", facts.hardware().name(),
        "': let tools:calibrate write --facts and --kernels"));
  }
  return facts.hardware().fp32_tflops() * 1e12 * *share;
}

// A run's seconds of a step, and what was wrong with the machine meanwhile.
struct Run {
  double seconds = 0;
  double others = 1;  // the share of the cores that other processes had
  double lost = 1;    // the share of their calibrated speed that the cores had lost
  bool is_disturbed() const { return others > kDisturbed || lost > kSlow; }
};

// Returns the least disturbed of a few runs.
absl::StatusOr<double> RunUndisturbed(const CheckedLayout& layout, const std::string& config_file,
                                      int cores, double rate) {
  Run best;
  for (int i = 0; i < kTries && best.is_disturbed(); ++i) {
    Run run;
    const double before = MeasureProbe(cores, kProbeSeconds);
    const OtherWork others;
    MEGATRON_ASSIGN_OR_RETURN(run.seconds, RunLayout(layout, config_file));
    run.others = others.Share();
    run.lost = 1 - std::min(before, MeasureProbe(cores, kProbeSeconds)) / rate;
    if (run.others + run.lost < best.others + best.lost) best = run;
  }
  if (best.is_disturbed()) {
    MEGATRON_RETURN_IF_ERROR(WriteToStdout(absl::StrFormat(
        "WARNING: %s %s: other processes had %.0f %% of the cores, which had %.0f %% of their "
        "calibrated speed\n",
        layout.model, layout.name, 100 * best.others, 100 * (1 - best.lost))));
  }
  return best.seconds;
}

absl::Status RunAll(const Facts& facts, const std::string& directory, Results* results) {
  MEGATRON_ASSIGN_OR_RETURN(const double rate, CalibratedRate(facts));
  for (const CheckedModel& model : CheckedModels()) {
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
        PosixFileSystem(), absl::StrCat(directory, "/", model.name, ".textproto"), model.config));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string only = absl::GetFlag(FLAGS_only);
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (const CheckedLayout& layout : CheckedLayouts()) {
      std::vector<double>& runs = (*results)[{layout.model, layout.name}];
      if (int(runs.size()) > round || (!only.empty() && layout.model != only)) continue;
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      if (passed.count() > absl::GetFlag(FLAGS_seconds)) return absl::OkStatus();
      MEGATRON_ASSIGN_OR_RETURN(
          const double seconds,
          RunUndisturbed(layout, absl::StrCat(directory, "/", layout.model, ".textproto"),
                         int(facts.hardware().cores()), rate));
      runs.push_back(seconds);
      MEGATRON_RETURN_IF_ERROR(WriteResults(absl::GetFlag(FLAGS_results), *results));
    }
  }
  return absl::OkStatus();
}

absl::Status Report(const Facts& facts, const Results& results) {
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program,
                            FindImplementation(facts.facts, kProgram));
  std::vector<CheckedRow> rows;
  std::vector<PlannedRun> planned;
  std::vector<Hardware> hardware;
  for (const CheckedLayout& layout : CheckedLayouts()) {
    MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                              LoadConfigFromString(ConfigOf(layout.model), layout.model,
                                                   layout.overrides, ConfigPurpose::kRun));
    MEGATRON_ASSIGN_OR_RETURN(PlannedRun run, ToPlannedRun(loaded.config, kPaddedVocab, *program));
    planned.push_back(std::move(run));
    hardware.push_back(
        HardwareOfRun(loaded.config, planned.back().layout.gpus(), facts.hardware()));
    const auto found = results.find({layout.model, layout.name});
    rows.push_back({layout.model, layout.name,
                    found == results.end() ? std::vector<double>() : found->second});
    MEGATRON_RETURN_IF_ERROR(PredictStep(hardware.back(), planned.back().program, facts.kernels,
                                         planned.back().model, planned.back().layout)
                                 .status());
  }
  const PredictRow predict = [&](const Implementation& fitted, int row) {
    Implementation its_program = planned[row].program;
    its_program.set_measured_efficiency(fitted.measured_efficiency());
    its_program.set_step_seconds(fitted.step_seconds());
    return PredictStep(hardware[row], its_program, facts.kernels, planned[row].model,
                       planned[row].layout)
        ->seconds.total;
  };
  const auto fill = [&](const Implementation& fitted) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i].predicted = predict(fitted, int(i));
    return CheckReport(rows);
  };
  const std::string before = fill(*program);
  const Implementation fitted = RefitProgram(*program, rows, predict);
  return WriteToStdout(
      absl::StrFormat("as calibrated:\n%s\nwith two constants fitted on every fourth layout "
                      "(measured_efficiency: %.2f, step_seconds: %.3f):\n%s",
                      before, fitted.measured_efficiency(), fitted.step_seconds(), fill(fitted)));
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const Facts facts, ReadFacts());
  MEGATRON_ASSIGN_OR_RETURN(Results results, ReadResults(absl::GetFlag(FLAGS_results)));
  const char* const scratch = std::getenv("TMPDIR");
  std::string directory =
      absl::StrCat(scratch != nullptr ? scratch : "/tmp", "/planner_check.XXXXXX");
  if (mkdtemp(directory.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("'", directory, "' can't be made"));
  }
  const absl::Status run = RunAll(facts, directory, &results);
  for (const CheckedModel& model : CheckedModels()) {
    remove(absl::StrCat(directory, "/", model.name, ".textproto").c_str());
  }
  remove(directory.c_str());
  MEGATRON_RETURN_IF_ERROR(run);
  return Report(facts, results);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Compares predictions with runs on this machine.",
                           megatron::Main);
}
