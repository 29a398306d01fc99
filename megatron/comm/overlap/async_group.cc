#include "megatron/comm/overlap/async_group.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/comm/overlap/comm_stream.h"
#include "megatron/comm/overlap/comm_worker.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// A communicator with a lane beside it.
class AsyncCommunicator : public ForwardingCommunicator {
 public:
  AsyncCommunicator(std::shared_ptr<Communicator> communicator, ProcessGroup beside,
                    std::unique_ptr<CommLane> lane)
      : ForwardingCommunicator(std::move(communicator)),
        beside_(std::move(beside)),
        lane_(std::move(lane)) {}

  const ProcessGroup& beside() const { return beside_; }
  CommLane* lane() const { return lane_.get(); }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override { return part; }

  const ProcessGroup beside_;
  const std::unique_ptr<CommLane> lane_;  // last, since its jobs use the others until it has ended
};

const AsyncCommunicator* AsyncOf(const ProcessGroup& group) {
  return dynamic_cast<const AsyncCommunicator*>(group.communicator().get());
}

}  // namespace

void AsyncCall::Wait() const {
  if (lane_ == nullptr) return;
  const bool stages = category_ == TimeCategory::kPipelineParallel;
  const TraceSpan span(compute_, category_, stages ? kWaitForStages : kWaitForLane);
  lane_->Wait(job_);
}

std::unique_ptr<CommLane> MakeCommLane(const Stream& compute, const std::string& name) {
  if (compute.device().type == DeviceType::kCuda)
    return std::make_unique<CommStream>(compute, name);
  return std::make_unique<CommWorker>(compute, name);
}

absl::StatusOr<ProcessGroup> CloneForLane(const ProcessGroup& group) {
  if (group.size() == 1) return group;
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  MEGATRON_ASSIGN_OR_RETURN(
      std::shared_ptr<Communicator> communicator,
      group.communicator()->Split({ranks}, absl::StrCat(group.name(), "-overlap")));
  return ProcessGroup(std::move(communicator));
}

absl::StatusOr<ProcessGroup> WithAsyncCalls(const ProcessGroup& group, const Stream& compute) {
  if (group.size() == 1 || compute.is_meta() ||
      !group.communicator()->TakesTensorsOf(compute.device().type))
    return group;
  MEGATRON_ASSIGN_OR_RETURN(ProcessGroup beside, CloneForLane(group));
  const std::string axis = group.name().substr(0, group.name().find('-'));
  const std::string name = absl::StrCat("communication ", axis);
  return ProcessGroup(std::make_shared<AsyncCommunicator>(group.communicator(), std::move(beside),
                                                          MakeCommLane(compute, name)));
}

AsyncCall StartAsync(const ProcessGroup& group, const Stream& compute, TimeCategory category,
                     std::function<void(const ProcessGroup&, const Stream&)> calls) {
  const AsyncCommunicator* const async = AsyncOf(group);
  if (async == nullptr) {
    calls(group, compute);
    return AsyncCall();
  }
  const int64_t job = async->lane()->Add([calls = std::move(calls), &beside = async->beside()](
                                             const Stream& stream) { calls(beside, stream); });
  return AsyncCall(async->lane(), job, compute, category);
}

}  // namespace megatron
