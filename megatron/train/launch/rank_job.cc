#include "megatron/train/launch/rank_job.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/host_name.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/store/store.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/stop_signals.h"

namespace megatron {
namespace {

// Each try loses a rank, or the time that ranks wait for one.
constexpr int kMostTries = 8;
// The others, which try longer, go on without a process that failed to join them so often.
constexpr int kMostJoins = 3;
static_assert(kMostJoins < kMostTries);
// The time after which a rank that had no descriptors tries again.
constexpr absl::Duration kDescriptorPause = absl::Seconds(1);

constexpr char kConfiguration[] = "run/configuration";  // the first rank's
constexpr char kOthersKeepTheirs[] =
    "the others keep the configuration that the run began with: take the change back, or end the "
    "run and start it again";

// Longer texts are compared as far as the store takes them.
std::string WhatTheStoreTakes(const std::string& configuration) {
  return configuration.substr(0, kMaxStoreValue);
}

// Returns "rank 3" or "ranks 2-3, 7"; of many the first.
std::string NameRanks(const std::vector<int>& ranks) {
  constexpr int kMostRuns = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int runs = 0;
  for (size_t i = 0; i < ranks.size(); ++runs) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (runs == kMostRuns) {
      absl::StrAppend(&text, ", and ", ranks.size() - i, " more");
      break;
    }
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
    if (last > i) absl::StrAppend(&text, "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

// The error of this process's variables, or of ranks that did not come.
absl::Status JoinError(const LaunchEnvironment& launch, const absl::Status& status) {
  const bool mine = status.code() == absl::StatusCode::kInvalidArgument;
  return WithExitCode(
      absl::Status(status.code(), absl::StrCat(launch.Describe(), ": ", status.message())),
      mine ? kExitConfig : kExitPeerLost);
}

// The error of a process that does not know whether the others have made a world with it. Those
// that have go on in that, and miss this process; one that came again might decide for them.
absl::Status LostAlone(const absl::Status& status) {
  return WithExitCode(
      absl::Status(status.code(), absl::StrCat("it did not hear whether all had made their group: ",
                                               status.message())),
      kExitHang);
}

TcpWorldOptions WorldOptions(const LaunchEnvironment& launch, const RanksOptions& options) {
  TcpWorldOptions world;
  world.connect_deadline = options.start_timeout;
  world.deadline = options.timeout;
  world.silence_limit = options.heartbeat_timeout;
  world.on_waiting = [launch](const std::vector<int>& missing) {
    std::printf("waiting for %s of %d at %s:%d\n", NameRanks(missing).c_str(), launch.world_size,
                launch.master_addr.c_str(), launch.master_port);
    std::fflush(stdout);
  };
  world.heartbeat_interval = std::min(absl::Seconds(1), options.heartbeat_timeout / 10);
  return world;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankJob>> RankJob::Join(
    const LaunchEnvironment& launch, const RanksOptions& options,
    const absl::StatusOr<std::string>& configuration) {
  const absl::StatusOr<JobSecret> secret = JobSecretFromEnvironment(ProcessEnvironment());
  if (!secret.ok()) return JoinError(launch, absl::InvalidArgumentError(secret.status().message()));
  std::unique_ptr<RankJob> job(new RankJob(launch, options));
  absl::StatusOr<std::unique_ptr<TcpJob>> met =
      TcpJob::Meet(launch, *secret, WorldOptions(launch, options));
  if (!met.ok()) return JoinError(launch, met.status());
  job->job_ = *std::move(met);
  job->regroup_ =
      std::make_unique<megatron::Regroup>(&job->job_->store(), options.heartbeat_timeout);
  const absl::StatusOr<int64_t> starts = job->regroup_->CountStarts(launch.rank);
  if (!starts.ok()) return JoinError(launch, starts.status());
  const bool is_late = *starts > 1;
  MEGATRON_RETURN_IF_ERROR(job->CompareConfiguration(configuration, is_late));
  if (!options.in_process_recovery) {
    const absl::Status status =
        job->job_->MakeWorld(launch.rank, launch.world_size, "world", options.start_timeout);
    if (!status.ok()) return JoinError(launch, status);
    return job;
  }
  const absl::StatusOr<bool> made = job->MakeFirstWorld(is_late);
  if (!made.ok()) return JoinError(launch, made.status());
  if (*made) return job;
  MEGATRON_ASSIGN_OR_RETURN(const bool is_in, job->JoinAsSpare());
  if (!is_in) return std::unique_ptr<RankJob>();
  return job;
}

absl::Status RankJob::CompareConfiguration(const absl::StatusOr<std::string>& mine, bool is_late) {
  Store& store = job_->store();
  if (is_late) {
    const absl::StatusOr<std::string> first = store.Get(kConfiguration, absl::ZeroDuration());
    if (!absl::IsDeadlineExceeded(first.status())) {
      if (!first.ok()) return JoinError(launched_, first.status());
      MEGATRON_RETURN_IF_ERROR(WithExitCode(mine.status(), kExitConfig), _ << kOthersKeepTheirs);
      const std::string own = WhatTheStoreTakes(*mine);
      if (own == *first) return absl::OkStatus();
      return WithExitCode(
          absl::FailedPreconditionError(absl::StrCat(
              "this process, in the place of a lost rank, was started with another configuration "
              "than the run: ",
              DescribeDifferences(DifferencesOf(*first, own)), "; ", kOthersKeepTheirs)),
          kExitConfig);
    }
  }
  // Where there is none, all that were started meet and tell why.
  if (launched_.rank > 0 || !options_.in_process_recovery || !mine.ok()) return absl::OkStatus();
  const absl::Status left = store.Set(kConfiguration, WhatTheStoreTakes(*mine));
  return left.ok() ? left : JoinError(launched_, left);
}

absl::StatusOr<bool> RankJob::AwaitAttemptAfter(int64_t attempt, absl::Time deadline) {
  while (SteadyNow() < deadline && StopSignal() == 0) {
    MEGATRON_ASSIGN_OR_RETURN(const int64_t newest, regroup_->NewestAttempt());
    if (newest > attempt) return true;
    // This takes a while where the answer is no.
    MEGATRON_ASSIGN_OR_RETURN(const bool is_open, regroup_->IsOpen());
    if (is_open) return true;
  }
  return false;
}

absl::StatusOr<bool> RankJob::MakeFirstWorld(bool is_late) {
  // Whom the lost process had met would miss it in the attempt that it was in.
  if (is_late) {
    MEGATRON_RETURN_IF_ERROR(regroup_->BeginAttempt());
  }
  const absl::Time deadline = SteadyNow() + options_.start_timeout;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const int64_t attempt, regroup_->NewestAttempt());
    if (is_late) {
      MEGATRON_ASSIGN_OR_RETURN(const bool is_open, regroup_->IsOpen());
      if (is_open) return false;
    }
    const absl::Status status =
        job_->MakeWorld(launched_.rank, launched_.world_size,
                        attempt == 0 ? "world" : absl::StrCat("world.attempt.", attempt),
                        options_.start_timeout, [&] {
                          const absl::StatusOr<bool> over = regroup_->IsOver(attempt);
                          return over.ok() && *over;
                        });
    if (status.ok() && launched_.rank == 0) {
      MEGATRON_RETURN_IF_ERROR(regroup_->Open(attempt));
    }
    if (status.ok()) return true;
    if (absl::IsResourceExhausted(status) && SteadyNow() < deadline) {
      std::printf("%s: %s; trying again\n", launched_.Describe().c_str(),
                  std::string(status.message()).c_str());
      std::fflush(stdout);
      absl::SleepFor(kDescriptorPause);
      // Those that it has met would miss it in the attempt that it was in.
      MEGATRON_RETURN_IF_ERROR(regroup_->BeginAttempt());
    } else if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      // A rank was lost that this one had met. The process in its place begins another attempt.
      // Where only a connection has ended there is no such process.
      const absl::Time patience = SteadyNow() + options_.heartbeat_timeout;
      MEGATRON_ASSIGN_OR_RETURN(const bool goes_on,
                                AwaitAttemptAfter(attempt, std::min(deadline, patience)));
      if (!goes_on && (SteadyNow() >= deadline || StopSignal() != 0)) return status;
      if (!goes_on) {
        MEGATRON_RETURN_IF_ERROR(regroup_->BeginAttempt());
      }
    } else if (!absl::IsCancelled(status)) {
      return status;
    }
    is_late = true;
  }
}

Comer RankJob::Self(int rank, const std::vector<KeptPart>& kept) const {
  return {launched_.rank, launched_.host.empty() ? HostName() : launched_.host, rank, kept};
}

absl::Status RankJob::MakeWorld(RegroupPlan plan) {
  const int rank = plan.RankOf(regroup_->comer());
  const auto is_given_up = [&] {
    const absl::StatusOr<bool> over = regroup_->IsGivenUp(plan);
    return over.ok() && *over;
  };
  const auto agree = [&](const TcpWorld& world) -> absl::Status {
    const absl::StatusOr<bool> have_made =
        regroup_->Agree(plan, [&] { return world.status().ok(); });
    reached_ = have_made.ok();
    MEGATRON_RETURN_IF_ERROR(have_made.status());
    if (*have_made) return absl::OkStatus();
    MEGATRON_RETURN_IF_ERROR(world.status());
    return absl::CancelledError("another rank could not make the same group");
  };
  const absl::Status made = job_->MakeWorld(rank, static_cast<int>(plan.ranks.size()),
                                            absl::StrCat("world.", regroup_->number()),
                                            options_.heartbeat_timeout, is_given_up, agree);
  if (!made.ok()) {
    regroup_->GiveUp().IgnoreError();
    return made;
  }
  launch_.rank = rank;
  launch_.world_size = static_cast<int>(plan.ranks.size());
  launch_.local_rank = launch_.local_world_size = 0;
  for (size_t other = 0; other < plan.ranks.size(); ++other) {
    if (plan.ranks[other].host != plan.ranks[rank].host) continue;
    if (launch_.local_world_size == 0) host_ = static_cast<int>(other);
    ++launch_.local_world_size;
    if (static_cast<int>(other) < rank) ++launch_.local_rank;
  }
  plan_ = std::move(plan);
  return absl::OkStatus();
}

absl::StatusOr<bool> RankJob::JoinAsSpare() {
  absl::Status last;
  for (int joins = 0; joins < kMostJoins; ++joins) {
    absl::StatusOr<RegroupPlan> plan =
        regroup_->MeetAsSpare(Self(-1, {}), launched_.world_size, [] { return StopSignal() != 0; });
    if (absl::IsCancelled(plan.status())) return false;
    MEGATRON_RETURN_IF_ERROR(WithExitCode(plan.status(), kExitPeerLost));
    if (plan->is_done) return false;
    if (plan->ends) return WithExitCode(absl::UnavailableError(plan->reason), kExitPeerLost);
    last = MakeWorld(*std::move(plan));
    if (last.ok()) return true;
    if (!reached_) return LostAlone(last);
  }
  // The code of a process that ends while the others go on.
  return WithExitCode(
      absl::Status(last.code(), absl::StrCat("it could not join the others ", kMostJoins,
                                             " times, at last: ", last.message())),
      kExitHang);
}

absl::StatusOr<bool> RankJob::Regroup(const std::vector<KeptPart>& kept,
                                      const RegroupRules& rules) {
  reached_ = false;
  absl::Status last;
  for (int tries = 0; tries < kMostTries; ++tries) {
    absl::StatusOr<RegroupPlan> plan = regroup_->MeetAsMember(
        Self(launch_.rank, kept), [this] { return job_->world().LiveRanks(); },
        [&](const std::vector<Comer>& comers) { return PlanRegroup(comers, rules); });
    last = plan.status();
    if (absl::IsAborted(last)) continue;
    MEGATRON_RETURN_IF_ERROR(WithExitCode(last, kExitPeerLost),
                             _ << "while ranks that are left met");
    reached_ = true;
    if (plan->ends) return WithExitCode(absl::UnavailableError(plan->reason), kExitPeerLost);
    if (plan->RankOf(regroup_->comer()) < 0) return JoinAsSpare();
    last = MakeWorld(*std::move(plan));
    if (last.ok()) return true;
    if (!reached_) return LostAlone(last);
  }
  return WithExitCode(last, kExitPeerLost);
}

int64_t RankJob::CountWaiting() { return regroup_->CountWaiting().value_or(0); }

void RankJob::End() {
  if (options_.in_process_recovery) regroup_->End("the run has ended").IgnoreError();
}

}  // namespace megatron
