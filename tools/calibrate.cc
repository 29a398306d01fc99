// Measures this machine's processor for the planner: products, attention and recurrences by shape,
// kernels that are bound by memory, collectives of threads and of processes.
//
//   calibrate --output=hardware.textproto --kernels_output=kernels.csv
//   plan --facts=hardware.textproto --kernels=kernels.csv --predict=rows.csv --output=out.csv
//
// Then it trains small models of its own, and fits eight constants to their steps.
//
//   calibrate --refit=run --output=hardware.textproto --kernels_output=kernels.csv
//
//   calibrate --disk=/mnt/nvme --output=hardware.textproto
//
// measures nothing but that folder's disk, for optimizer states in files.
//
// A machine that does other work is measured all the same, and a warning says so.

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "tools/calibration/calibrated_facts.h"
#include "tools/calibration/check_report.h"
#include "tools/calibration/disk_rates.h"
#include "tools/calibration/measure_cores.h"
#include "tools/calibration/measure_links.h"
#include "tools/calibration/measure_turns.h"
#include "tools/calibration/reference_runs.h"
#include "tools/calibration/refit_from_run.h"
#include "tools/common/tool_main.h"

namespace megatron {

// A path that differs from none even where it is empty, as that of a variable without a value.
struct GivenPath {
  std::string path;
  bool is_given = false;
};

bool AbslParseFlag(absl::string_view text, GivenPath* given, std::string* /*error*/) {
  *given = {std::string(text), true};
  return true;
}
std::string AbslUnparseFlag(const GivenPath& given) { return given.path; }

}  // namespace megatron

ABSL_FLAG(std::string, output, "hardware.textproto",
          "Where to write the hardware and this program's efficiencies.");
ABSL_FLAG(std::string, kernels_output, "kernels.csv", "Where to write the measured kernels.");
ABSL_FLAG(double, seconds, 60, "Time for all kernels, from 1 to 3600; links take a few more.");
ABSL_FLAG(megatron::GivenPath, refit, {},
          "A run's checkpoint.save: measures nothing, and fits two constants of --output, which is "
          "there, to the steps of that run.");
ABSL_FLAG(
    std::string, name, "",
    "The machine's name in both files; else its processor's. With --disk the hardware's entry "
    "in --output, where it has several.");
ABSL_FLAG(megatron::GivenPath, disk, {},
          "A folder: measures its disk alone, and writes the rates and the room into --output, "
          "which is there.");
ABSL_FLAG(int, disk_ranks, 1, "How many ranks, or GPUs, of a machine share the disk of --disk.");
ABSL_FLAG(bool, train, true,
          "Whether small models are trained, to whose steps eight constants are fitted.");

namespace megatron {
namespace {

constexpr const char* kProgram = "megatron_cc";
constexpr int kMostDiskRanks = 4096;
constexpr double kBusy = 0.2;  // processes of each core that want to run
// Runs of each reference layout, where kernels have so many seconds.
constexpr int kRounds = 5;
constexpr double kSecondsOfRounds = 30;
// The turns on a core that are measured in each of these seconds.
constexpr double kTurnsOfASecond = 4;
constexpr double kMostTurns = 1000;

std::string ProcessorName() {
  // Its size is 0 for the file system, so that it is read as a stream.
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() == 2 && absl::StartsWith(parts[0], "model name")) {
      return std::string(absl::StripAsciiWhitespace(parts[1]));
    }
  }
  return "processor";
}

// Returns what to say about other work on the machine, or nothing.
std::string BusyWarning(int cores) {
  double load = 0;
  if (getloadavg(&load, 1) != 1 || load <= kBusy * cores) return "";
  return absl::StrFormat(
      "WARNING: the machine is busy: a load of %.2f on %d cores in the last minute. Rates will be "
      "too low; measure again when it is idle.\n",
      load, cores);
}

// Returns a line as a comment of the file; nothing for none.
std::string Comment(const std::string& line) {
  return line.empty() ? "" : absl::StrCat("# ", line);
}

double MemoryGib() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return 1;
  return double(info.totalram) * info.mem_unit / double(1 << 30);
}

absl::StatusOr<MeasuredMachine> Measure() {
  MeasuredMachine machine;
  machine.cores = AvailableCores();
  machine.name = absl::GetFlag(FLAGS_name);
  if (machine.name.empty()) machine.name = absl::StrCat(ProcessorName(), " x", machine.cores);
  machine.memory_gib = MemoryGib();
  // Processes come first: they start as copies of a process without threads.
  MEGATRON_ASSIGN_OR_RETURN(machine.processes, MeasureProcesses(machine.cores));
  MEGATRON_ASSIGN_OR_RETURN(machine.threads, MeasureThreads(machine.cores));
  machine.core = MeasureCores(machine.cores, absl::GetFlag(FLAGS_seconds));
  const double turns = kTurnsOfASecond * absl::GetFlag(FLAGS_seconds);
  machine.turn_seconds = MeasureTurnSeconds(machine.cores, int(std::min(turns, kMostTurns)));
  return machine;
}

std::string Summary(const MeasuredMachine& machine) {
  const CoreRates& core = machine.core;
  return absl::StrFormat(
      "%s: each of %d cores: %.1f GFLOP/s at most, %.2f GB/s of memory; a rank of all cores has "
      "%.0f %% of their speed\n"
      "threads: %.2f GB/s, %.0f us and %.1f us a rank; processes: %.2f GB/s, %.0f us\n"
      "between products %.2f (with gates %.2f), optimizer %.2f of the memory's rate, far memory "
      "%.2f; %.0f us more in a layer; %d kernels\n"
      "threads of a rank meet in %.1f us; a rank waits for a core that others have for %.1f ms; a "
      "router takes %.1f ns for a token and expert; rows come "
      "to experts and back at %.2f of the memory's rate\n",
      machine.name, machine.cores, core.peak_flops_per_s * 1e-9, core.memory_bytes_per_s * 1e-9,
      100 * core.thread_efficiency, machine.threads.bytes_per_s * 1e-9, machine.threads.latency_us,
      machine.threads.rank_latency_us, machine.processes.bytes_per_s * 1e-9,
      machine.processes.latency_us, core.memory_efficiency, core.gated_memory_efficiency,
      core.optimizer_efficiency, core.far_memory_efficiency, 1e6 * core.layer_overhead_seconds,
      core.kernels.size(), 1e6 * core.thread_meeting_seconds, 1e3 * machine.turn_seconds,
      1e9 * core.routing_score_seconds, core.permutation_efficiency);
}

// Refuses flags that are given and have no effect.
absl::Status CheckUnused(const std::vector<const char*>& names, const char* with) {
  for (const char* name : names) {
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    CHECK(flag != nullptr) << name;
    if (flag->CurrentValue() == flag->DefaultValue()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", name, " has no effect with ", with));
  }
  return absl::OkStatus();
}

absl::Status Disk(const std::string& directory) {
  if (directory.empty())
    return absl::InvalidArgumentError("--disk is empty: it names a folder of the disk");
  MEGATRON_RETURN_IF_ERROR(
      CheckUnused({"seconds", "train", "kernels_output"}, "--disk, which measures the disk alone"));
  const int ranks = absl::GetFlag(FLAGS_disk_ranks);
  if (ranks < 1 || ranks > kMostDiskRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--disk_ranks lies from 1 to ", kMostDiskRanks, ", not ", ranks));
  }
  DiskRequest request;
  request.directory = directory;
  request.hardware = absl::GetFlag(FLAGS_output);
  request.name = absl::GetFlag(FLAGS_name);
  request.ranks = ranks;
  MEGATRON_ASSIGN_OR_RETURN(const std::string line, CalibrateDisk(PosixFileSystem(), request));
  return WriteToStdout(line + "\n");
}

absl::Status Refit(const std::string& run) {
  if (run.empty()) {
    return absl::InvalidArgumentError(
        "--refit is empty: it names the checkpoint.save of a run that has compared itself with its "
        "prediction");
  }
  MEGATRON_RETURN_IF_ERROR(CheckUnused({"seconds", "name", "train", "disk", "disk_ranks"},
                                       "--refit, which measures nothing"));
  MEGATRON_ASSIGN_OR_RETURN(const std::string line,
                            RefitFromRun(PosixFileSystem(), {run, absl::GetFlag(FLAGS_output),
                                                             absl::GetFlag(FLAGS_kernels_output)}));
  return WriteToStdout(line + "\n");
}

// Fits the program's constants to reference runs. Returns a line about it.
absl::StatusOr<std::string> Train(const CsvTable& table, PlanFacts* facts) {
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredKernels kernels, MeasuredKernels::Parse(table));
  const int rounds = absl::GetFlag(FLAGS_seconds) < kSecondsOfRounds ? 1 : kRounds;
  Implementation* const program = facts->mutable_implementation(0);
  MEGATRON_ASSIGN_OR_RETURN(FittedProgram fitted,
                            FitToReferenceRuns(facts->hardware(0), *program, kernels, rounds));
  MEGATRON_RETURN_IF_ERROR(WriteToStdout(CheckReport(fitted.rows)));
  int counted = 0;
  for (const CheckedRow& row : fitted.rows) counted += int(row.measured.size());
  *program = std::move(fitted.program);
  return absl::StrFormat(
      "fitted to %d runs of reference models: measured_efficiency %.3f, "
      "gated_memory_efficiency %.3f, step_seconds %.4f, threads_efficiency %.2f, turn_cost %.3f, "
      "turn_seconds %.4f, routing_seconds %.6f, expert_wait %.2f\n",
      counted, program->measured_efficiency(), program->gated_memory_efficiency(),
      program->step_seconds(), program->threads_efficiency(), program->turn_cost(),
      program->turn_seconds(), program->routing_seconds(), program->expert_wait());
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  if (const GivenPath run = absl::GetFlag(FLAGS_refit); run.is_given) return Refit(run.path);
  if (const GivenPath disk = absl::GetFlag(FLAGS_disk); disk.is_given) return Disk(disk.path);
  MEGATRON_RETURN_IF_ERROR(CheckUnused({"disk_ranks"}, "no --disk"));
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds >= 1 && seconds <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds lies from 1 to 3600, not ", seconds));
  }
  if (absl::GetFlag(FLAGS_train)) {
    MEGATRON_RETURN_IF_ERROR(CheckTrainingProgram());
  }
  const std::string warning = BusyWarning(AvailableCores());
  MEGATRON_RETURN_IF_ERROR(WriteToStdout(warning));
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts built_in, ParsePlanFacts(BuiltInPlanFacts()));
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program, FindImplementation(built_in, kProgram));
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredMachine machine, Measure());
  PlanFacts facts = CalibratedFacts(machine, *program);
  const CsvTable kernels = CalibratedKernels(machine);
  std::string fitted;
  if (absl::GetFlag(FLAGS_train)) {
    MEGATRON_ASSIGN_OR_RETURN(fitted, Train(kernels, &facts));
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(facts, &text);
  // What is written can be read.
  MEGATRON_RETURN_IF_ERROR(ParsePlanFacts(text).status());
  MEGATRON_RETURN_IF_ERROR(MeasuredKernels::Parse(kernels).status());
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
      PosixFileSystem(), absl::GetFlag(FLAGS_output),
      absl::StrCat("# Written by tools:calibrate.\n", Comment(warning), Comment(fitted), text)));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
      PosixFileSystem(), absl::GetFlag(FLAGS_kernels_output), FormatCsv(kernels)));
  return WriteToStdout(absl::StrCat(Summary(machine), fitted));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Measures this machine for the planner.", megatron::Main);
}
