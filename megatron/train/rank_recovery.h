// How one rank of several goes on without ranks that were lost: what it keeps while ranks change,
// and when it may.
#ifndef MEGATRON_TRAIN_RANK_RECOVERY_H_
#define MEGATRON_TRAIN_RANK_RECOVERY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/regroup.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/launch/rank_job.h"
#include "megatron/train/rank/kept_rank.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {

class RankRecovery {
 public:
  // `ranks`, `launch` and `failure` outlive it, and may change. `fits` says whether the
  // configuration would be valid with a parallel.data_parallel_size.
  RankRecovery(const RanksOptions& ranks, const LaunchEnvironment& launch,
               const FirstFailure& failure, std::function<bool(int64_t)> fits)
      : ranks_(ranks), launch_(launch), failure_(failure), fits_(std::move(fits)) {}

  // This process is a rank of `job`, and has run since `start`.
  void Join(RankJob* job, absl::Time start) {
    job_ = job;
    left_at_ = start;
  }
  // The run of this configuration is about to be planned. From now on ranks may be lost, unless a
  // topology file is still to choose the order of ranks.
  void BeginPlan(const config::PretrainConfig& config);
  // The run that is planned.
  void Plan(const ParallelSizes& sizes, bool has_checkpoints) {
    sizes_ = sizes;
    has_checkpoints_ = has_checkpoints;
  }

  // Whether ranks have met anew since the launch.
  bool goes_on() const { return job_ != nullptr && job_->plan() != nullptr; }
  // Whether this process was no rank of the world before, and others have taken it in.
  bool has_come() const { return goes_on() && job_->plan()->ranks[job_->launch().rank].has_come; }
  // Whether other ranks were lost, and this process may go on without them. Safe for threads.
  bool LostOthers() const;
  bool MayGoOn() const { return job_ != nullptr && sizes_ && (makes_room_ || LostOthers()); }
  // The rank has left its world only to let others in.
  void set_makes_room(bool makes_room) { makes_room_ = makes_room; }
  bool makes_room() const { return makes_room_; }
  void LeaveWorld() { left_at_ = SteadyNow(); }
  // Makes a world of the processes that go on. Returns whether this one does.
  absl::StatusOr<bool> Regroup();
  // Returns TrainingRun::others_come of the first rank, for the world that there is. Its end waits
  // for the store where that has not answered yet.
  std::function<bool()> OthersCome();
  // Describes in `run` the world that this process has come to.
  void DescribeGoingOn(TrainingRun* run);

  KeptRank& kept() { return kept_; }

 private:
  // What is kept, if it is of this process's rank.
  std::vector<KeptPart> KeptParts() const;
  RegroupRules Rules() const;

  const RanksOptions& ranks_;
  const LaunchEnvironment& launch_;
  const FirstFailure& failure_;
  const std::function<bool(int64_t)> fits_;
  RankJob* job_ = nullptr;              // null: this process is not one rank of several
  std::optional<ParallelSizes> sizes_;  // the layout before
  KeptRank kept_;
  bool has_checkpoints_ = false;
  bool makes_room_ = false;
  absl::Time left_at_;  // when it had to leave its world
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_RECOVERY_H_
