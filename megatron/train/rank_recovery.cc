#include "megatron/train/rank_recovery.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/parallel_section.h"

namespace megatron {
namespace {

// The time for which a step waits for the job's store. Its process may be suspended.
constexpr auto kStorePatience = std::chrono::milliseconds(250);

}  // namespace

void RankRecovery::BeginPlan(const config::PretrainConfig& config) {
  // Who goes on knows the layout, with its order of ranks, from the world before.
  if (sizes_ || !config.parallel().topology_file().empty()) return;
  const absl::StatusOr<ParallelSizes> sizes = ToParallelSizes(config.parallel());
  if (sizes.ok()) Plan(*sizes, !config.checkpoint().save().empty());
}

bool RankRecovery::LostOthers() const {
  if (!ranks_.in_process_recovery || job_ == nullptr) return false;
  const absl::Status world = job_->world().status();
  if (!absl::IsUnavailable(world) && !absl::IsDeadlineExceeded(world)) return false;
  // What failed here may follow from it, unless it is wrong in itself.
  const int code = ExitCodeOf(failure_.Get());
  return code == kExitDone || code == kExitPeerLost || code == kExitHang || code == kExitIo;
}

std::vector<KeptPart> RankRecovery::KeptParts() const {
  std::vector<KeptPart> parts;
  // Until the run is planned anew, the number of hosts is that of the ranks before.
  ParallelSizes sizes = *sizes_;
  sizes.hosts = 1;
  const absl::StatusOr<RankGrid> grid = RankGrid::Create(sizes, launch_.world_size);
  if (!grid.ok()) return parts;
  for (const std::optional<KeptState>* kept : {&kept_.state, &kept_.before}) {
    if (!kept->has_value()) continue;
    const KeptState& state = **kept;
    const bool is_of_rank = grid->Coordinate(launch_.rank, Axis::kTensor) == state.tensor_rank &&
                            grid->Coordinate(launch_.rank, Axis::kPipeline) == state.pipeline_rank;
    if (!is_of_rank) continue;
    for (const KeptShard& shard : state.shards)
      parts.push_back({shard.common.progress.iteration, shard.shard, state.sharing.count});
  }
  return parts;
}

RegroupRules RankRecovery::Rules() const {
  RegroupRules rules;
  rules.sizes = *sizes_;
  const int ranks_of_model = launch_.world_size / sizes_->data;
  rules.most_data_size = job_->launched_ranks() / ranks_of_model;
  rules.least_data_size = std::max<int>(1, static_cast<int>(ranks_.min_data_size));
  rules.fits = fits_;
  rules.from_checkpoint = has_checkpoints_;
  return rules;
}

std::function<bool()> RankRecovery::OthersCome() {
  const int ranks_of_model = launch_.world_size / sizes_->data;
  int next = sizes_->data + 1;
  const int most = job_->launched_ranks() / ranks_of_model;
  while (next <= most && !fits_(next)) ++next;
  if (next > most) return nullptr;
  const int64_t missing = int64_t{ranks_of_model} * next - launch_.world_size;
  auto waiting = std::make_shared<std::future<int64_t>>();
  return [job = job_, missing, waiting, last = absl::InfinitePast()]() mutable {
    auto patience = std::chrono::milliseconds(0);
    if (!waiting->valid()) {
      if (SteadyNow() < last + absl::Seconds(1)) return false;
      last = SteadyNow();
      *waiting = std::async(std::launch::async | std::launch::deferred,
                            [job] { return job->CountWaiting(); });
      patience = kStorePatience;
    }
    const std::future_status state = waiting->wait_for(patience);
    // There was no thread to ask it.
    if (state == std::future_status::deferred) *waiting = std::future<int64_t>();
    if (state != std::future_status::ready) return false;
    return waiting->get() >= missing;
  };
}

void RankRecovery::DescribeGoingOn(TrainingRun* run) {
  const RegroupPlan& plan = *job_->plan();
  run->going_on.emplace();
  run->going_on->how =
      absl::StrCat(plan.reason.empty() ? "" : " ", plan.reason, ": ", plan.ranks.size(),
                   " ranks, parallel.data_parallel_size = ", plan.data_size, ", from ",
                   plan.iteration >= 0 ? "the memory of ranks" : "a checkpoint");
  run->going_on->since = left_at_;
  run->going_on->last_step = kept_.last_step;
  run->going_on->unwritten_metrics = kept_.unwritten_metrics;
}

absl::StatusOr<bool> RankRecovery::Regroup() {
  makes_room_ = false;
  MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, job_->Regroup(KeptParts(), Rules()));
  if (!goes_on) return false;
  sizes_->data = job_->plan()->data_size;
  // The others may have made its last step again without it, in another layout.
  if (has_come()) kept_.ForgetState();
  return true;
}

}  // namespace megatron
