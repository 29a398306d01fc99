// The job of a process that is one rank of several: the store where ranks find each other, and the
// world of those that there are. With in-process recovery the world may change (comm/launch/
// regroup.h).
//
//   auto job = RankJob::Join(launch, options, configuration);
//   while (Train(job->world(), job->launch()) has lost other ranks) {
//     MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, job->Regroup(kept, rules));
//     if (!goes_on) break;
//   }
#ifndef MEGATRON_TRAIN_LAUNCH_RANK_JOB_H_
#define MEGATRON_TRAIN_LAUNCH_RANK_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/regroup.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

class RankJob {
 public:
  // Returns when all ranks have found each other or, in a process that was started in the place of
  // a lost rank, when the others have taken it in. Null: they ended without it. Errors carry an
  // exit code.
  //
  // `configuration` is what this process has read: a text of fields that all ranks have alike
  // (config/config_text.h), or why there is none. A process in the place of a lost rank that has
  // read another one than the job began with does not come to the others: the error has
  // kExitConfig.
  static absl::StatusOr<std::unique_ptr<RankJob>> Join(
      const LaunchEnvironment& launch, const RanksOptions& options,
      const absl::StatusOr<std::string>& configuration);

  TcpWorld& world() { return job_->world(); }
  // The place of this process among the ranks that there are now.
  const LaunchEnvironment& launch() const { return launch_; }
  // A number of this process's host, which the ranks there have alike: the lowest of them.
  int host() const { return host_; }
  // The number of ranks that the job was launched with.
  int launched_ranks() const { return launched_.world_size; }
  // What ranks agreed on when they made the world; null: it is that of the launch.
  const RegroupPlan* plan() const { return plan_ ? &*plan_ : nullptr; }

  // Meets the other processes of the job, and makes a world of those that go on. `kept` is that of
  // Comer. False: they ended without this process. Errors carry an exit code: kExitHang if this
  // process is lost alone, since it did not join the others or does not know whether it has.
  absl::StatusOr<bool> Regroup(const std::vector<KeptPart>& kept, const RegroupRules& rules);
  // Whether this process is the one that tells the error of the last Regroup.
  bool tells() const { return regroup_->leads() || !reached_; }
  // Returns the number of processes that wait to be taken in.
  int64_t CountWaiting();
  // Tells them that the run ends.
  void End();

 private:
  RankJob(const LaunchEnvironment& launch, const RanksOptions& options)
      : launched_(launch),
        options_(options),
        launch_(launch),
        host_(launch.rank - launch.local_rank) {}

  // The first rank leaves its configuration in the store. A process that is late, in the place of a
  // lost rank, compares its own with that, if it is there.
  absl::Status CompareConfiguration(const absl::StatusOr<std::string>& mine, bool is_late);
  // Waits for a newer attempt to make the world of the launch, or until the others have it. False:
  // neither came in time, or this process is asked to stop.
  absl::StatusOr<bool> AwaitAttemptAfter(int64_t attempt, absl::Time deadline);
  // Makes the world of the launch. False: the others have one without this process.
  absl::StatusOr<bool> MakeFirstWorld(bool is_late);
  Comer Self(int rank, const std::vector<KeptPart>& kept) const;
  // Comes to one rendezvous after another. False: they ended without this process. Errors are those
  // of Regroup: with kExitHang, too, where the world with this process could not be made several
  // times.
  absl::StatusOr<bool> JoinAsSpare();
  // After an error reached_ says whether the store could answer.
  absl::Status MakeWorld(RegroupPlan plan);

  const LaunchEnvironment launched_;
  const RanksOptions options_;
  LaunchEnvironment launch_;
  int host_;
  std::unique_ptr<TcpJob> job_;
  std::unique_ptr<megatron::Regroup> regroup_;
  std::optional<RegroupPlan> plan_;
  bool reached_ = true;  // the store was reached in the last Regroup
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAUNCH_RANK_JOB_H_
