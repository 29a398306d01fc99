#include "megatron/comm/nccl/nccl_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/patient_lock.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/communicator.h"
#include "megatron/tensor/cuda_graph.h"

namespace megatron {
namespace {

// NCCL's own threads work for tens of microseconds mostly, and for seconds when they connect.
constexpr absl::Duration kShortSleep = absl::Microseconds(5), kLongSleep = absl::Milliseconds(1);
constexpr absl::Duration kShortWait = absl::Milliseconds(2);
// Whoever holds a lock for longer hangs in NCCL.
constexpr absl::Duration kLockPatience = absl::Milliseconds(100);

bool Failed(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

absl::Status Ended(const std::string& what) {
  return absl::UnavailableError(what + ": NCCL has ended here");
}

}  // namespace

NcclGroup::~NcclGroup() { Abort(); }

std::string NcclGroup::CallText(uint64_t number, const std::string& what) const {
  return absl::StrCat("rank ", host_->rank(), " of ", host_->name(), ", call ", number, ", ", what);
}

std::string NcclGroup::Describe(const UnderWay& call) const {
  return CallText(call.number, call.what);
}

absl::Status NcclGroup::Error(const std::string& what, NcclResult error, ncclComm* comm) const {
  return absl::UnavailableError(
      absl::StrCat(what, ": NCCL has failed: ", api_.Describe(error, comm)));
}

absl::Status NcclGroup::Settle(const std::string& what, absl::Duration patience) {
  const absl::Time start = SteadyNow();
  while (true) {
    MEGATRON_RETURN_IF_ERROR(host_->status());
    {
      const absl::MutexLock lock(&mutex_);
      if (comm_ == nullptr) return Ended(what);
      const NcclResult state = api_.AsyncError(comm_);
      if (state == kNcclSuccess) return absl::OkStatus();
      if (state != kNcclInProgress) return Error(what, state, comm_);
    }
    const absl::Duration waited = SteadyNow() - start;
    if (waited > patience) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": NCCL is not done after ", absl::FormatDuration(patience)));
    }
    absl::SleepFor(waited < kShortWait ? kShortSleep : kLongSleep);
  }
}

absl::Status NcclGroup::Initialize(const NcclUniqueId& id) {
  const std::string what =
      absl::StrCat("rank ", host_->rank(), " of ", host_->name(), ", connecting");
  {
    const absl::MutexLock lock(&mutex_);
    const NcclResult result =
        api_.CommInitRank(&comm_, host_->size(), id, host_->rank(), host_->name());
    if (Failed(result)) return Error(what, result, nullptr);
  }
  return Settle(what, options_.connect_deadline);
}

absl::Status NcclGroup::Split(int color, int key, NcclGroup* child) {
  const std::string what =
      absl::StrCat("rank ", host_->rank(), " of ", host_->name(), ", splitting");
  // NCCL writes it when this group is no longer in progress.
  ncclComm* made = nullptr;
  {
    const absl::MutexLock lock(&mutex_);
    if (comm_ == nullptr) return Ended(what);
    const NcclResult result = api_.CommSplit(comm_, color, key, child->host_->name(), &made);
    if (Failed(result)) return Error(what, result, comm_);
  }
  const absl::Status settled = Settle(what, options_.connect_deadline);
  // The place that it writes to is gone when this returns: after a failure it must not. The abort
  // may have to wait for other groups', which the world's failure brings about.
  if (!settled.ok()) {
    host_->Abort(settled);
    Abort();
  }
  if (made != nullptr) {
    const absl::MutexLock lock(&child->mutex_);
    child->comm_ = made;
  }
  MEGATRON_RETURN_IF_ERROR(settled);
  return made == nullptr ? absl::OkStatus() : child->Settle(what, options_.connect_deadline);
}

absl::Status NcclGroup::Enqueue(const std::string& what, const Calls& calls, const Stream& stream) {
  uint64_t number;
  {
    const absl::MutexLock lock(&mutex_);
    number = ++calls_;
    if (comm_ == nullptr) return Ended(CallText(number, what));
    const NcclResult result = calls(comm_);
    if (Failed(result)) return Error(CallText(number, what), result, comm_);
  }
  MEGATRON_RETURN_IF_ERROR(Settle(CallText(number, what), options_.deadline));
  // Nobody can ask for an event of a graph. A launch that hangs holds up the calls behind it, which
  // are watched.
  if (IsCapturing(*stream.cuda())) return absl::OkStatus();
  const absl::MutexLock lock(&mutex_);
  const absl::Time now = SteadyNow();
  Retire(now);
  std::unique_ptr<CudaEvent> done;
  if (free_events_.empty()) {
    done = std::make_unique<CudaEvent>(options_.device);
  } else {
    done = std::move(free_events_.back());
    free_events_.pop_back();
  }
  done->Record(*stream.cuda());
  under_way_.push_back({what, number, now, std::move(done)});
  return absl::OkStatus();
}

void NcclGroup::Retire(absl::Time now) {
  while (!under_way_.empty() && under_way_.front().done->Reached()) {
    free_events_.push_back(std::move(under_way_.front().done));
    under_way_.pop_front();
    if (!under_way_.empty()) under_way_.front().since = now;
  }
}

absl::Status NcclGroup::Watch(absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  if (comm_ == nullptr) return absl::OkStatus();
  Retire(now);
  const NcclResult state = api_.AsyncError(comm_);
  if (Failed(state)) {
    const std::string what = under_way_.empty()
                                 ? absl::StrCat("rank ", host_->rank(), " of ", host_->name())
                                 : Describe(under_way_.front());
    return Error(what, state, comm_);
  }
  if (under_way_.empty() || now - under_way_.front().since <= options_.deadline)
    return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(Describe(under_way_.front()), ": the device has not done it after ",
                   absl::FormatDuration(options_.deadline), ": not all ranks have entered it"));
}

std::vector<std::string> NcclGroup::PendingCalls() const {
  constexpr size_t kMost = 3;
  const PatientLock lock(&mutex_, kLockPatience);
  if (!lock.held()) {
    return {absl::StrCat("rank ", host_->rank(), " of ", host_->name(), ": a call of NCCL hangs")};
  }
  std::vector<std::string> lines;
  for (const UnderWay& call : under_way_) {
    if (lines.size() == kMost) break;
    lines.push_back(Describe(call) + (lines.empty() ? ", was on the device" : ", was to follow"));
  }
  return lines;
}

void NcclGroup::End(NcclResult (NcclApi::*end)(ncclComm*)) {
  const absl::MutexLock end_lock(&end_mutex_);
  ncclComm* comm;
  {
    const absl::MutexLock lock(&mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  // The rank's thread must not wait for this: it may have to destroy graphs first.
  if (comm != nullptr) (api_.*end)(comm);
}

void NcclGroup::Abort() { End(&NcclApi::CommAbort); }

void NcclGroup::Finish(absl::Duration patience) {
  {
    const absl::MutexLock lock(&mutex_);
    if (comm_ == nullptr || Failed(api_.CommFinalize(comm_))) return;
  }
  if (Settle("finishing", patience).ok()) End(&NcclApi::CommDestroy);
}

}  // namespace megatron
