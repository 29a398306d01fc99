#include "megatron/train/preflight/check_same_run.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/consensus.h"

namespace megatron {

absl::Status CheckSameRun(const RunInputs& mine, const ProcessGroup& processes) {
  config::PretrainConfig config = mine.config;
  config.clear_system();  // machines may differ
  Consensus consensus(processes);
  const std::string text =
      absl::StrCat(EffectiveConfigText(config), "data fingerprint: ", mine.data_fingerprint, "\n");
  if (!consensus.Same(text)) {
    const std::string first = consensus.OfFirst(text);
    if (first == text) return absl::OkStatus();  // another rank has the error
    return WithExitCode(
        absl::FailedPreconditionError(
            absl::StrCat("was started with another configuration than rank 0, or has other data: ",
                         DescribeDifferences(DifferencesOf(first, text)))),
        kExitConfig);
  }
  if (!consensus.Same(mine.rank_order)) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "the ranks read different shapes of the machines from parallel.topology_file: this "
            "rank's order is ",
            mine.rank_order)),
        kExitConfig);
  }
  if (!consensus.Same(mine.gemm_plans)) {
    return WithExitCode(
        absl::FailedPreconditionError("the ranks read different plans from system.gemm_plan_file"),
        kExitConfig);
  }
  if (!consensus.Same(mine.attention)) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "the ranks' machines offer different kernels for attention: this rank's choice is ",
            mine.attention, "; set system.attention_backend to one that all have")),
        kExitConfig);
  }
  if (!consensus.Same(mine.checkpoint)) {
    return WithExitCode(absl::FailedPreconditionError(
                            "the ranks see different checkpoints: checkpoint.save and "
                            "checkpoint.load must be directories that all machines share"),
                        kExitCorruptCheckpoint);
  }
  if (!consensus.Same(mine.instruction_set)) {
    const std::string first = consensus.OfFirst(mine.instruction_set);
    if (first == mine.instruction_set) return absl::OkStatus();  // another rank has the error
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "computes with ", mine.instruction_set, ", and rank 0 with ", first,
            ": copies of weights would drift apart; MEGATRON_CPU_ISA=avx2 on all machines, or "
            "another instruction set that all have, makes them alike")),
        kExitConfig);
  }
  return absl::OkStatus();
}

}  // namespace megatron
