// Runs 40 layouts of three small models on this machine's cores, and prints what tools:plan
// predicts beside what a step takes.
//
//   calibrate --output=hardware.textproto --kernels_output=kernels.csv
//   planner_check --facts=hardware.textproto --kernels=kernels.csv --results=runs.csv
//
// Runs are interleaved: all layouts once, then all again. --results keeps them, so that a later
// call goes on where --seconds ended an earlier one. A run that other processes disturbed, or whose
// cores were slower than when they were calibrated, is repeated in a later round. Two constants are
// fitted on every fourth layout; the tables before that have none. A machine whose speed drifts is
// told by a short product and a pass over memory before and after each run: the second table has
// the runs at the speed of the calibration.
//
//   planner_check --facts=hardware.textproto --kernels=kernels.csv --results=choice.csv --ranks=8
//
// looks whether the layout that a search (train.auto_layout) chooses for so many ranks is the
// fastest: the 40 that are predicted to be fastest run, and the faster half of them again and
// again.

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/planning/search_layouts.h"
#include "tools/calibration/check_layouts.h"
#include "tools/calibration/check_report.h"
#include "tools/calibration/measure_cores.h"
#include "tools/calibration/planned_layout.h"
#include "tools/calibration/watched_run.h"
#include "tools/common/tool_main.h"
#include "tools/plan/predicted_chart.h"

ABSL_FLAG(std::string, facts, "hardware.textproto", "The hardware, as calibrate writes it.");
ABSL_FLAG(std::string, kernels, "kernels.csv", "The measured kernels, as calibrate writes them.");
ABSL_FLAG(std::string, results, "", "Where runs are kept: a CSV that is read, and added to.");
ABSL_FLAG(double, seconds, 600, "No run begins after so many seconds.");
ABSL_FLAG(int, rounds, 5, "Undisturbed runs of each layout.");
ABSL_FLAG(int, ranks, 0,
          "Look at the layout that is chosen for so many ranks, in place of the 40.");
ABSL_FLAG(std::string, picture, "",
          "Where to write an SVG picture of the 40 layouts' medians and predictions.");
ABSL_FLAG(std::string, only, "", "Run layouts of this model alone: gpt, llama or mixture.");

namespace megatron {
namespace {

constexpr const char* kProgram = "megatron_cc";
constexpr int64_t kVocab = 257;  // bytes, and the end of a document
// The layouts of --ranks that run, the fastest predicted ones.
constexpr int kCandidates = 40;
constexpr const char* kColumns = "model,layout,step_s,others,lost";

using Results = std::map<std::pair<std::string, std::string>, std::vector<CheckedRun>>;

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
    CheckedRun run;
    if (row.size() != 5 || !absl::SimpleAtod(row[2], &run.seconds) || !(run.seconds > 0) ||
        !absl::SimpleAtod(row[3], &run.others) || !absl::SimpleAtod(row[4], &run.lost)) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": rows are ", kColumns));
    }
    results[{row[0], row[1]}].push_back(run);
  }
  return results;
}

absl::Status WriteResults(const std::string& file, const Results& results) {
  if (file.empty()) return absl::OkStatus();
  CsvTable table;
  table.columns = absl::StrSplit(kColumns, ',');
  for (const auto& [layout, runs] : results) {
    for (const CheckedRun& run : runs) {
      table.rows.push_back({layout.first, layout.second, absl::StrCat(run.seconds),
                            absl::StrCat(run.others), absl::StrCat(run.lost)});
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

absl::Status RunAll(const Facts& facts, const std::string& directory, Results* results) {
  MEGATRON_ASSIGN_OR_RETURN(const ProbeRates calibrated,
                            CalibratedRates(facts.hardware(), facts.kernels));
  for (const CheckedModel& model : CheckedModels()) {
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
        PosixFileSystem(), absl::StrCat(directory, "/", model.name, ".textproto"), model.config));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string only = absl::GetFlag(FLAGS_only);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  for (int round = 0; round < kTriesOfARun * rounds; ++round) {
    for (const CheckedLayout& layout : CheckedLayouts()) {
      std::vector<CheckedRun>& runs = (*results)[{layout.model, layout.name}];
      if (int(runs.size()) > round || Undisturbed(runs) >= rounds) continue;
      if (!only.empty() && layout.model != only) continue;
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      if (passed.count() > absl::GetFlag(FLAGS_seconds)) return absl::OkStatus();
      MEGATRON_ASSIGN_OR_RETURN(
          const CheckedRun run,
          RunWatched(layout, absl::StrCat(directory, "/", layout.model, ".textproto"),
                     int(facts.hardware().cores()), calibrated));
      runs.push_back(run);
      MEGATRON_RETURN_IF_ERROR(WriteResults(absl::GetFlag(FLAGS_results), *results));
    }
  }
  return absl::OkStatus();
}

absl::Status WritePicture(const std::vector<CheckedRow>& rows) {
  const std::string file = absl::GetFlag(FLAGS_picture);
  if (file.empty()) return absl::OkStatus();
  ComparedColumn column = {"seconds of a step", {}};
  for (const CheckedRow& row : rows) {
    if (!row.measured.empty()) column.rows.push_back({MedianOf(row.measured), row.predicted});
  }
  return WriteFileAtomically(PosixFileSystem(), file,
                             PredictedChart("Layouts on this machine's cores", std::move(column)));
}

absl::Status Report(const Facts& facts, const Results& results) {
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program,
                            FindImplementation(facts.facts, kProgram));
  std::vector<CheckedRow> rows;
  std::vector<std::vector<double>> at_speed;  // their times, as if cores had not changed theirs
  std::vector<PlannedLayout> planned;
  for (const CheckedLayout& layout : CheckedLayouts()) {
    MEGATRON_ASSIGN_OR_RETURN(PlannedLayout its, PlanCheckedLayout(ConfigOf(layout.model), layout,
                                                                   *program, facts.hardware()));
    planned.push_back(std::move(its));
    const auto found = results.find({layout.model, layout.name});
    const auto runs = found == results.end() ? std::vector<CheckedRun>() : found->second;
    rows.push_back({layout.model, layout.name, RunsThatCount(runs), 0, Undisturbed(runs) == 0});
    at_speed.push_back(AtCalibratedSpeed(runs));
    MEGATRON_RETURN_IF_ERROR(planned.back().Seconds(*program, facts.kernels).status());
  }
  const PredictRow predict = [&](const Implementation& fitted, int row) {
    return *planned[row].Seconds(fitted, facts.kernels);
  };
  const auto fill = [&](const Implementation& fitted) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i].predicted = predict(fitted, int(i));
    return CheckReport(rows);
  };
  const std::string before = fill(*program);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].measured = at_speed[i];
  const std::string at_calibrated = CheckReport(rows);
  MEGATRON_RETURN_IF_ERROR(WritePicture(rows));
  const Implementation fitted = RefitProgram(*program, rows, predict);
  return WriteToStdout(absl::StrFormat(
      "as calibrated:\n%s\nas calibrated, each run at the cores' calibrated speed:\n%s\nwith two "
      "constants fitted on every fourth of these layouts (measured_efficiency: %.2f, "
      "step_seconds: %.3f):\n%s",
      before, at_calibrated, fitted.measured_efficiency(), fitted.step_seconds(), fill(fitted)));
}

absl::StatusOr<LayoutSearch> SearchModel(const Facts& facts, const CheckedModel& model, int ranks) {
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program,
                            FindImplementation(facts.facts, kProgram));
  const ParsedConfig parsed = ParseConfig(model.config, model.name);
  MEGATRON_RETURN_IF_ERROR(ToStatus(parsed.errors));
  const Hardware hardware = HardwareOfRun(parsed.config, ranks, facts.hardware());
  Planner planner;
  planner.hardware = &hardware;
  planner.program = program;
  planner.kernels = &facts.kernels;
  planner.is_gpu = false;
  SearchOptions options;
  options.ranks = ranks;
  options.best = kCandidates;
  options.memory_bytes = DefaultMemoryLimit(hardware) / double(ranks);
  options.shares_memory = true;
  return SearchLayouts(parsed.config, kVocab, planner, options);
}

// Runs the candidates of one model until the fastest is found, or the time has passed.
absl::Status CheckChoice(const Facts& facts, const CheckedModel& model, const std::string& file,
                         const std::function<bool()>& is_over, Results* results) {
  MEGATRON_ASSIGN_OR_RETURN(const ProbeRates calibrated,
                            CalibratedRates(facts.hardware(), facts.kernels));
  const int ranks = absl::GetFlag(FLAGS_ranks);
  MEGATRON_ASSIGN_OR_RETURN(const LayoutSearch found, SearchModel(facts, model, ranks));
  if (found.best.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no layout of ", model.name, " has ", ranks, " ranks"));
  }
  const std::string key = absl::StrCat(model.name, " on ", ranks);
  std::vector<std::string> names;
  std::vector<std::vector<CheckedRun>> runs;
  for (const FoundLayout& layout : found.best) {
    names.push_back(DescribeLayout(layout.axes));
    runs.push_back((*results)[{key, names.back()}]);
  }
  while (const auto next = NextToRun(runs, absl::GetFlag(FLAGS_rounds))) {
    if (is_over()) break;
    MEGATRON_RETURN_IF_ERROR(
        WriteFileAtomically(PosixFileSystem(), file, found.best[*next].config.DebugString()));
    MEGATRON_ASSIGN_OR_RETURN(const CheckedRun run,
                              RunWatched({model.name, names[*next], {}}, file,
                                         int(facts.hardware().cores()), calibrated));
    runs[*next].push_back(run);
    (*results)[{key, names[*next]}] = runs[*next];
    MEGATRON_RETURN_IF_ERROR(WriteResults(absl::GetFlag(FLAGS_results), *results));
  }
  if (runs[0].empty()) return WriteToStdout(absl::StrCat(key, ": nothing has run\n"));
  return WriteToStdout(ChoiceReport(key, names, runs));
}

absl::Status CheckChoices(const Facts& facts, const std::string& directory, Results* results) {
  const auto start = std::chrono::steady_clock::now();
  const auto is_over = [start] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    return passed.count() > absl::GetFlag(FLAGS_seconds);
  };
  const std::string only = absl::GetFlag(FLAGS_only);
  for (const CheckedModel& model : CheckedModels()) {
    if (!only.empty() && model.name != only) continue;
    const std::string file = absl::StrCat(directory, "/", model.name, ".textproto");
    MEGATRON_RETURN_IF_ERROR(CheckChoice(facts, model, file, is_over, results));
  }
  return absl::OkStatus();
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
  const bool checks_choice = absl::GetFlag(FLAGS_ranks) != 0;
  const absl::Status run =
      checks_choice ? CheckChoices(facts, directory, &results) : RunAll(facts, directory, &results);
  for (const CheckedModel& model : CheckedModels()) {
    remove(absl::StrCat(directory, "/", model.name, ".textproto").c_str());
  }
  remove(directory.c_str());
  MEGATRON_RETURN_IF_ERROR(run);
  return checks_choice ? absl::OkStatus() : Report(facts, results);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Compares predictions with runs on this machine.",
                           megatron::Main);
}
