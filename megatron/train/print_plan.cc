#include "megatron/train/print_plan.h"

#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/preflight/check_limits.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/open_data.h"
#include "megatron/train/preflight/open_local_checkpoints.h"
#include "megatron/train/preflight/plan_pretraining.h"
#include "megatron/train/preflight/plan_report.h"
#include "megatron/train/print_lines.h"

namespace megatron {
namespace {

// Returns the configuration to plan; sets the layout where that is to be chosen.
absl::StatusOr<LoadedConfig> LoadToPlan(const PretrainCommand& command, SavedLayout* layout) {
  const absl::StatusOr<AskedConfig> asked = ReadAsked(command);
  MEGATRON_RETURN_IF_ERROR(asked.status());
  if (asked->chooses_layout()) {
    MEGATRON_ASSIGN_OR_RETURN(*layout, ChooseLayoutOf(command, *asked, LaunchEnvironment()));
  }
  return LoadWithLayout(*asked, command.all_overrides(), *layout, ConfigPurpose::kDryRun);
}

}  // namespace

int PrintPlan(const PretrainCommand& command) {
  SavedLayout layout;
  const absl::StatusOr<LoadedConfig> loaded = ForThisProgram(command, LoadToPlan(command, &layout));
  if (!loaded.ok()) return PrintError(loaded.status());
  const absl::StatusOr<PlannedPretraining> planned = PlanPretraining(loaded->config);
  if (!planned.ok()) return PrintError(planned.status());
  const absl::Status predictable =
      WithExitCode(ReadFactsOfRun(PosixFileSystem(), planned->options).status(), kExitConfig);
  if (!predictable.ok()) return PrintError(predictable);
  std::string report;
  if (command.dry_run == DryRun::kFull) {
    report = FormatFullPlan(*loaded, *planned);
  } else {
    MachineMemory machine = MemoryOfThisMachine(planned->options.num_ranks());
    // A plan may be for another machine, with devices that this one lacks.
    const auto here = LoadConfig(command.config, WithLayout(command.all_overrides(), layout),
                                 ConfigPurpose::kRun);
    machine.refusal = std::string(here.status().message());
    const TrainerOptions& trainer = planned->options.trainer;
    const std::string& folder =
        trainer.state_directory.empty() ? trainer.weight_directory : trainer.state_directory;
    if (!folder.empty()) machine.disk_bytes = FreeDiskBytes(PosixFileSystem(), folder);
    const int devices = static_cast<int>(machine.gpu_bytes.size());
    if (const int ranks = RanksPlannedHere(planned->options, devices); ranks > 0) {
      const RunOptions& options = planned->options;
      const absl::Status limits = CheckLimits(LimitsOfThisProcess(), options, planned->plan, ranks,
                                              /*rank=*/std::nullopt);
      machine.limit_refusal = std::string(limits.message());
      const absl::Status disk = CheckDisk(PosixFileSystem(), options, planned->plan, ranks);
      machine.disk_refusal = std::string(disk.message());
      const absl::Status room = CheckRoomForCheckpoint(
          PosixFileSystem(), options, planned->plan, ranks, LocalDirectoryHere(options.checkpoint));
      machine.checkpoint_shortage = std::string(room.message());
    }
    report = command.dry_run == DryRun::kJson ? FormatPlanJson(*loaded, *planned, machine)
                                              : FormatPlanScreen(*loaded, *planned, machine);
  }
  if (command.dry_run != DryRun::kJson) {
    for (const std::string& line : command.checkpoint_lines) PrintLine(line);
    for (const std::string& line : layout.line()) PrintLine(line);
    // A plan may be for another machine, which has the data.
    const std::string problem =
        ProblemOfTexts(PosixFileSystem(), planned->options.data, *planned->tokenizer);
    if (!problem.empty())
      PrintLine(absl::StrCat("WARNING: the data can't be read here: ", problem));
  }
  std::fwrite(report.data(), 1, report.size(), stdout);
  return kExitDone;
}

}  // namespace megatron
