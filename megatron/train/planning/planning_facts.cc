#include "megatron/train/planning/planning_facts.h"

#include <sys/sysinfo.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/trainer/run_identity.h"

namespace megatron {
namespace {

constexpr const char* kOwnProgram = "megatron_cc";
constexpr const char* kKernelsName = "kernels.csv";
constexpr int64_t kMostBytes = int64_t{64} << 20;
// A guess, like the other figures of a processor that nobody has measured.
constexpr double kThreadEfficiency = 0.85;

absl::StatusOr<std::string> ReadField(FileSystem& fs, const char* field, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileToString(fs, path, kMostBytes);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(field, " = ", path, ": ", text.status().message()));
}

absl::Status ReadKernels(FileSystem& fs, const std::string& path, const char* field,
                         PlanningFacts* facts) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadField(fs, field, path));
  const std::string named = absl::StrCat(field, " = ", path);
  const absl::StatusOr<CsvTable> table = ParseCsv(text);
  if (!table.ok())
    return absl::InvalidArgumentError(absl::StrCat(named, ": ", table.status().message()));
  absl::StatusOr<MeasuredKernels> kernels = MeasuredKernels::Parse(*table);
  if (!kernels.ok())
    return absl::InvalidArgumentError(absl::StrCat(named, ": ", kernels.status().message()));
  facts->kernels = *std::move(kernels);
  absl::StrAppend(&facts->digest, text);
  return absl::OkStatus();
}

absl::Status UseOwnProgram(const PlanFacts& built_in, const PlanFacts& read, PlanningFacts* facts) {
  const auto found = FindImplementation(read, kOwnProgram);
  if (found.ok()) {
    facts->program = **found;
    return absl::OkStatus();
  }
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* own, FindImplementation(built_in, kOwnProgram));
  facts->program = *own;
  return absl::OkStatus();
}

absl::StatusOr<PlanningFacts> FromFile(FileSystem& fs, const PlanningOptions& options,
                                       const PlanFacts& built_in) {
  PlanningFacts facts;
  const std::string named = absl::StrCat("system.hardware_file = ", options.hardware_file);
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadField(fs, "system.hardware_file", options.hardware_file));
  const absl::StatusOr<PlanFacts> read = ParsePlanFacts(text);
  if (!read.ok())
    return absl::InvalidArgumentError(absl::StrCat(named, ": ", read.status().message()));
  if (read->hardware_size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(named, " has ", read->hardware_size(),
                     " entries 'hardware': it must have one, as tools:calibrate writes it"));
  }
  facts.hardware = read->hardware(0);
  facts.digest = text;
  MEGATRON_RETURN_IF_ERROR(UseOwnProgram(built_in, *read, &facts));
  facts.source = absl::StrCat(options.hardware_file, " (", facts.hardware.name(), ")");
  const std::string beside = JoinPath(ParentPath(options.hardware_file), kKernelsName);
  if (!options.kernels_file.empty()) {
    MEGATRON_RETURN_IF_ERROR(ReadKernels(fs, options.kernels_file, "system.kernels_file", &facts));
  } else if (fs.Stat(beside).ok()) {
    MEGATRON_RETURN_IF_ERROR(
        ReadKernels(fs, beside, "the kernels beside system.hardware_file", &facts));
  }
  return facts;
}

std::string Plain(absl::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (absl::ascii_isalnum(c)) plain.push_back(absl::ascii_tolower(c));
  }
  return plain;
}

// Returns the kind with the longest name of those that are in the GPU's.
absl::StatusOr<Hardware> GpuHere(const PlanFacts& built_in) {
  const std::string advice =
      "system.hardware_file: must name a file with this GPU's figures (docs/planning.md)";
  if (CudaDeviceCount() == 0)
    return absl::InvalidArgumentError(absl::StrCat(advice, ", since there is no GPU here to ask"));
  const std::string name = CudaFacts(0).name;
  const Hardware* best = nullptr;
  size_t longest = 0;
  for (const Hardware& hardware : built_in.hardware()) {
    const std::string plain = Plain(hardware.name());
    if (plain.size() <= longest || !absl::StrContains(Plain(name), plain)) continue;
    best = &hardware;
    longest = plain.size();
  }
  if (best != nullptr) return *best;
  return absl::InvalidArgumentError(
      absl::StrCat(advice, ", since no figures of a ", name, " come with the program"));
}

absl::StatusOr<Hardware> RoughProcessor(const PlanFacts& built_in) {
  MEGATRON_ASSIGN_OR_RETURN(const Hardware* found, FindHardware(built_in, "CPU"));
  Hardware hardware = *found;
  hardware.set_cores(AvailableCores());
  hardware.set_thread_efficiency(kThreadEfficiency);
  struct sysinfo info = {};
  if (sysinfo(&info) == 0) {
    hardware.set_memory_gib(double(info.totalram) * double(info.mem_unit) /
                            double(int64_t{1} << 30));
  }
  return hardware;
}

absl::StatusOr<PlanningFacts> FromProgram(const PlanFacts& built_in, bool is_gpu) {
  PlanningFacts facts;
  MEGATRON_ASSIGN_OR_RETURN(facts.hardware, is_gpu ? GpuHere(built_in) : RoughProcessor(built_in));
  MEGATRON_RETURN_IF_ERROR(UseOwnProgram(built_in, built_in, &facts));
  const absl::StatusOr<CsvTable> table = ParseCsv(BuiltInMeasuredKernels());
  MEGATRON_RETURN_IF_ERROR(table.status());
  MEGATRON_ASSIGN_OR_RETURN(facts.kernels, MeasuredKernels::Parse(*table));
  facts.is_rough = !is_gpu;
  facts.source = is_gpu ? absl::StrCat("the program's figures of ", facts.hardware.name())
                        : "rough figures of any processor; tools:calibrate measures this one, for "
                          "system.hardware_file";
  facts.digest = facts.source;
  return facts;
}

}  // namespace

absl::StatusOr<PlanningFacts> ReadPlanningFacts(FileSystem& fs, const PlanningOptions& options,
                                                bool is_gpu) {
  MEGATRON_ASSIGN_OR_RETURN(const PlanFacts built_in, ParsePlanFacts(BuiltInPlanFacts()));
  MEGATRON_ASSIGN_OR_RETURN(PlanningFacts facts, options.hardware_file.empty()
                                                     ? FromProgram(built_in, is_gpu)
                                                     : FromFile(fs, options, built_in));
  facts.digest = RunId(facts.digest);
  return facts;
}

absl::StatusOr<std::optional<PlanningFacts>> ReadFactsOfRun(FileSystem& fs,
                                                            const RunOptions& options) {
  if (!options.planning.predicts()) return std::nullopt;
  return ReadPlanningFacts(fs, options.planning, options.device == DeviceType::kCuda);
}

}  // namespace megatron
