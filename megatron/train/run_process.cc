#include "megatron/train/run_process.h"

#include "megatron/train/print_lines.h"

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

void RunProcess::Print(const std::string& line) const {
  if (is_reporting_rank()) PrintLine(line);
}

}  // namespace megatron
