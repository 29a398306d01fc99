#include "megatron/train/run_process.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/print_lines.h"
#include "megatron/train/trainer/consensus.h"

namespace megatron {

absl::StatusOr<bool> RunProcess::Join(const RanksOptions& options,
                                      const absl::StatusOr<std::string>& configuration) {
  if (!one_of_several_) return true;
  MEGATRON_ASSIGN_OR_RETURN(job_, RankJob::Join(launch_, options, configuration));
  return job_ != nullptr;
}

void RunProcess::EnterWorld() {
  launch_ = job_->launch();
  group_ = ProcessGroup(job_->world().communicator());
}

absl::Status RunProcess::Agree(const absl::Status& mine) const {
  // After a failure of the others the process may meet them again.
  if (mine.ok() || !leaves_alone_ || !group_.status().ok())
    return Consensus(group_).FirstFailure(mine);
  return WithExitCode(
      absl::Status(mine.code(),
                   absl::StrCat(mine.message(), "; the others go on without this process")),
      kExitHang);
}

void RunProcess::Print(const std::string& line) const {
  if (is_reporting_rank()) PrintLine(line);
}

}  // namespace megatron
