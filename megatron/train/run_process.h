// RunProcess: this process among those of a run.
#ifndef MEGATRON_TRAIN_RUN_PROCESS_H_
#define MEGATRON_TRAIN_RUN_PROCESS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/launch/rank_job.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// The process is one rank of several, or the run is this process alone, whose ranks are threads or
// processes that it starts.
class RunProcess {
 public:
  explicit RunProcess(LaunchEnvironment launch)
      : launch_(std::move(launch)), one_of_several_(launch_.world_size > 1) {}

  bool one_of_several() const { return one_of_several_; }
  // This process's place among the ranks that there are.
  const LaunchEnvironment& launch() const { return launch_; }
  bool is_first() const { return launch_.rank == 0; }
  bool is_reporting_rank() const { return launch_.rank == launch_.world_size - 1; }
  int RanksHere(const RunOptions& options) const {
    return one_of_several_ ? launch_.local_world_size : options.num_ranks();
  }
  RankJob* job() const { return job_.get(); }  // null: it has not joined one
  // All processes of the run; itself alone before it has entered a world of several.
  const ProcessGroup& group() const { return group_; }

  // Joins the job of the other processes, if it is one rank of several. Returns whether the run
  // needs this process. `configuration` is that of RankJob::Join.
  absl::StatusOr<bool> Join(const RanksOptions& options,
                            const absl::StatusOr<std::string>& configuration);
  // Takes its place in the job's world, which may be another one than before.
  void EnterWorld();
  void LeaveWorld() { group_ = ProcessGroup(); }

  // Whether the others go on without this process if it ends now. An error of its own is not theirs
  // then.
  void set_leaves_alone(bool leaves_alone) { leaves_alone_ = leaves_alone; }
  bool leaves_alone() const { return leaves_alone_; }
  // Waits for the other processes and goes on if none has an error. Else all return that of the
  // first which has. One that leaves alone returns its own at once, with kExitHang, and its caller
  // ends it: the others miss it.
  absl::Status Agree(const absl::Status& mine) const;
  template <typename T>
  absl::StatusOr<T> Agree(absl::StatusOr<T> mine) const {
    MEGATRON_RETURN_IF_ERROR(Agree(mine.status()));
    return mine;
  }

  // Prints what all processes know, once.
  void Print(const std::string& line) const;
  void Warn(const std::string& warning) const { Print("WARNING: " + warning); }

 private:
  LaunchEnvironment launch_;
  const bool one_of_several_;
  std::unique_ptr<RankJob> job_;
  ProcessGroup group_;
  bool leaves_alone_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RUN_PROCESS_H_
