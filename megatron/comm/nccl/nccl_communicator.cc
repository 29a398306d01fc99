#include "megatron/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/host_staging.h"
#include "megatron/comm/nccl/compare_calls.h"
#include "megatron/comm/nccl/nccl_calls.h"
#include "megatron/comm/nccl/nccl_group.h"
#include "megatron/comm/nccl/nccl_watch.h"
#include "megatron/comm/nccl/rank_order_sum.h"

namespace megatron {
namespace {

// The longest time for all ranks to reach the end of their worlds.
constexpr absl::Duration kFinishPatience = absl::Seconds(5);

// The state that all groups of one rank share.
struct World {
  NcclApi* api = nullptr;
  NcclWorldOptions options;
  std::shared_ptr<NcclWatch> watch;

  std::shared_ptr<NcclGroup> MakeGroup(const std::shared_ptr<Communicator>& host) const {
    return std::make_shared<NcclGroup>(
        api, host, NcclGroupOptions{options.device, options.connect_deadline, options.deadline});
  }
};

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

bool Reduces(const CollectiveCall& call) {
  return call.collective == Collective::kAllReduce || call.collective == Collective::kReduceScatter;
}

// Returns whether all ranks know that there is nothing to do.
bool MovesNothing(const CollectiveCall& call) {
  return call.collective != Collective::kExchange && call.collective != Collective::kAllToAllV &&
         call.in.bytes() == 0;
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(World world, std::shared_ptr<Communicator> host,
                   std::shared_ptr<NcclGroup> group)
      : world_(std::move(world)),
        host_(std::move(host)),
        group_(std::move(group)),
        sums_(world_.api, group_.get(), host_->size(), host_->rank()) {}

  int size() const override { return host_->size(); }
  int rank() const override { return host_->rank(); }
  const std::string& name() const override { return host_->name(); }
  bool TakesTensorsOf(DeviceType type) const override {
    return type == DeviceType::kCuda || host_->TakesTensorsOf(type);
  }
  absl::Status status() const override { return host_->status(); }
  void Abort(const absl::Status& reason) override { host_->Abort(reason); }

  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (stream.device().type != DeviceType::kCuda) return host_->Run(call, stream);
    CHECK_EQ(stream.device().index, world_.options.device) << call.Describe();
    if (call.collective == Collective::kBarrier) return host_->Run(call, Stream::Inline());
    if (!status().ok()) return;
    const absl::Status enqueued = RunOnDevice(call, stream);
    if (!enqueued.ok()) host_->Abort(enqueued);
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> host, host_->Split(partition, name));
    std::shared_ptr<NcclGroup> group = world_.MakeGroup(host);
    size_t color = 0;
    while (std::count(partition[color].begin(), partition[color].end(), rank()) == 0) ++color;
    // A group of one has nobody to talk to and gets no communicator of NCCL.
    const bool alone = host->size() == 1;
    if (size() > 1) {
      const absl::Status made =
          group_->Split(alone ? -1 : static_cast<int>(color), host->rank(), group.get());
      if (!made.ok()) {
        host_->Abort(made);
        return status();
      }
    }
    if (!alone) world_.watch->Add(group);
    return std::make_shared<NcclCommunicator>(world_, std::move(host), std::move(group));
  }

 private:
  absl::Status RunOnDevice(const CollectiveCall& call, const Stream& stream) {
    if (world_.options.compare_calls && call.collective != Collective::kExchange) {
      MEGATRON_RETURN_IF_ERROR(CompareCalls(host_.get(), call, ++compared_));
    }
    if (call.compares_only || MovesNothing(call)) return absl::OkStatus();
    if (Reduces(call) && !NcclReduces(call.in.dtype())) {
      RunOnHost(*host_, call, stream);
      return absl::OkStatus();
    }
    const std::string what = call.Describe();
    if (world_.options.sum_in_rank_order && Reduces(call) && call.reduce == ReduceOp::kSum &&
        IsFloating(call.in.dtype())) {
      return call.collective == Collective::kAllReduce
                 ? sums_.AllReduce(call.in, what, stream)
                 : sums_.ReduceScatter(call.in, call.out, what, stream);
    }
    return group_->Enqueue(
        what, [&](ncclComm* comm) { return NcclCall(world_.api, call, size(), comm, stream); },
        stream);
  }

  const World world_;
  const std::shared_ptr<Communicator> host_;
  const std::shared_ptr<NcclGroup> group_;
  RankOrderSum sums_;
  uint64_t compared_ = 0;
};

// The id that rank 0 makes, on all ranks.
absl::StatusOr<NcclUniqueId> ShareUniqueId(NcclApi* api, Communicator* host) {
  NcclUniqueId id{};
  if (host->rank() == 0) {
    const NcclResult result = api->GetUniqueId(&id);
    if (result != kNcclSuccess) {
      host->Abort(absl::UnavailableError(
          absl::StrCat("NCCL has failed to start: ", api->Describe(result, nullptr))));
    }
  }
  CollectiveCall call;
  call.collective = Collective::kBroadcast;
  call.in = Tensor(id.data(), DType::kUInt8, {static_cast<int64_t>(id.size())});
  host->Run(call, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(host->status());
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclWorld>> NcclWorld::Create(NcclApi* api,
                                                             std::shared_ptr<Communicator> host,
                                                             const NcclWorldOptions& options) {
  CHECK(api != nullptr);
  MEGATRON_ASSIGN_OR_RETURN(const NcclUniqueId id, ShareUniqueId(api, host.get()));
  World world = {api, options,
                 std::make_shared<NcclWatch>(host, options.device, options.watch_interval)};
  std::shared_ptr<NcclGroup> group = world.MakeGroup(host);
  const absl::Status status = group->Initialize(id);
  if (!status.ok()) {
    host->Abort(status);
    return host->status();
  }
  world.watch->Add(group);
  std::unique_ptr<NcclWorld> made(new NcclWorld(world.watch));
  made->communicator_ =
      std::make_shared<NcclCommunicator>(std::move(world), std::move(host), std::move(group));
  return made;
}

NcclWorld::~NcclWorld() { watch_->Finish(kFinishPatience); }

std::vector<std::string> NcclWorld::PendingCalls() const { return watch_->PendingCalls(); }

}  // namespace megatron
