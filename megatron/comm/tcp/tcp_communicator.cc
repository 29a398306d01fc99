#include "megatron/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/comm/tcp/tcp_call.h"
#include "megatron/comm/tcp/tcp_exchange.h"
#include "megatron/comm/tcp/tcp_group.h"
#include "megatron/comm/tcp/tcp_mesh.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

// A group is identified by a hash of its path, so that ranks need not agree on a number.
uint64_t IdOf(const std::string& path) {
  const Sha256Digest digest = Sha256(path);
  uint64_t id;
  std::memcpy(&id, digest.data(), sizeof(id));
  return id;
}

std::unique_ptr<TcpGroup> MakeGroup(std::shared_ptr<TcpMesh> mesh, std::string path,
                                    std::string name, std::vector<int> world_ranks) {
  auto group = std::make_unique<TcpGroup>();
  group->id = IdOf(path);
  group->path = std::move(path);
  group->name = std::move(name);
  group->world_ranks = std::move(world_ranks);
  group->rank = static_cast<int>(
      std::find(group->world_ranks.begin(), group->world_ranks.end(), mesh->rank()) -
      group->world_ranks.begin());
  group->sent.resize(group->size());
  group->received.resize(group->size());
  group->deadline = mesh->options().deadline;
  group->mesh = std::move(mesh);
  return group;
}

std::vector<int> AllRanks(const TcpMesh& mesh) {
  std::vector<int> ranks(mesh.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string SplitText(const std::vector<std::vector<int>>& partition, const std::string& name) {
  return absl::StrCat("split into ", name, " by ",
                      absl::StrJoin(partition, " ", [](std::string* out, const auto& ranks) {
                        absl::StrAppend(out, "[", absl::StrJoin(ranks, " "), "]");
                      }));
}

class TcpCommunicator : public Communicator {
 public:
  explicit TcpCommunicator(std::unique_ptr<TcpGroup> group) : group_(std::move(group)) {}

  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank; }
  const std::string& name() const override { return group_->name; }
  absl::Status status() const override { return group_->mesh->status(); }
  void Abort(const absl::Status& reason) override { group_->mesh->Fail(reason); }

  void Run(const CollectiveCall& call, const Stream& stream) override {
    CHECK(stream.device().type == DeviceType::kCpu) << stream.device();
    if (!status().ok()) return;
    if (call.collective == Collective::kExchange) {
      group_->mesh->Fail(RunTcpExchange(group_.get(), call));
    } else {
      ++group_->calls;
      group_->mesh->Fail(TcpCall(group_.get(), call, "", stream).Run());
    }
  }

  // Ranks compare the arguments as they compare calls. The connections exist already.
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    CheckPartition(partition, size());
    MEGATRON_RETURN_IF_ERROR(status());
    ++group_->calls;
    const CollectiveCall no_call;
    const Stream no_stream = Stream::Meta();
    group_->mesh->Fail(TcpCall(group_.get(), no_call, SplitText(partition, name), no_stream).Run());
    MEGATRON_RETURN_IF_ERROR(status());
    size_t i = 0;
    while (std::count(partition[i].begin(), partition[i].end(), rank()) == 0) ++i;
    std::vector<int> world_ranks;
    for (int member : partition[i]) world_ranks.push_back(group_->world_ranks[member]);
    std::string child = absl::StrCat(name, "-", i);
    std::string path = absl::StrCat(group_->path, "/", group_->calls, ":", child);
    return std::make_shared<TcpCommunicator>(
        MakeGroup(group_->mesh, std::move(path), std::move(child), std::move(world_ranks)));
  }

 private:
  const std::unique_ptr<TcpGroup> group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TcpWorld>> TcpWorld::Create(Store* store, const JobSecret& secret,
                                                           const TcpWorldOptions& options) {
  CHECK(options.rank >= 0 && options.rank < options.size) << options.rank << " of " << options.size;
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<TcpMesh> mesh,
                            TcpMesh::Connect(store, secret, options));
  // A rank may still need the store until all have found all others.
  const auto everybody = MakeGroup(mesh, options.name + "/start", options.name, AllRanks(*mesh));
  everybody->deadline = options.connect_deadline;
  const CollectiveCall no_call;
  const Stream no_stream = Stream::Meta();
  mesh->Fail(TcpCall(everybody.get(), no_call, "start", no_stream).Run());
  MEGATRON_RETURN_IF_ERROR(mesh->status());
  mesh->control().AllAreConnected();
  return std::unique_ptr<TcpWorld>(new TcpWorld(std::move(mesh)));
}

TcpWorld::TcpWorld(std::shared_ptr<TcpMesh> mesh) : mesh_(std::move(mesh)) {
  const std::string& name = mesh_->options().name;
  communicator_ = std::make_shared<TcpCommunicator>(MakeGroup(mesh_, name, name, AllRanks(*mesh_)));
}

TcpWorld::~TcpWorld() { mesh_->Leave(); }

void TcpWorld::Abort(const absl::Status& reason) { mesh_->Abort(reason); }

int TcpWorld::size() const { return mesh_->size(); }

std::vector<int> TcpWorld::LiveRanks() const { return mesh_->control().LiveRanks(); }

absl::Status TcpWorld::status() const { return mesh_->status(); }

void TcpWorld::SetFailureHook(FailureHook hook) {
  mesh_->control().SetFailureHook(std::move(hook));
}

std::vector<std::string> TcpWorld::CallsAtFailure(int) const {
  return mesh_->control().CallsAtFailure();
}

std::optional<std::map<int, std::string>> TcpWorld::GatherStates(std::string state,
                                                                 absl::Time deadline) {
  return mesh_->control().GatherStates(std::move(state), deadline);
}

bool TcpWorld::InCall(int) const { return mesh_->activities()->any(); }

absl::Duration TcpWorld::CallersProcessorTime(int) const {
  return mesh_->activities()->ProcessorTime();
}

bool TcpWorld::IsAwaited(int) const { return mesh_->control().IsAwaited(); }

std::vector<WaitingCall> TcpWorld::WaitingCalls(int) const {
  return mesh_->activities()->WaitingCalls();
}

bool TcpWorld::Idle() const { return mesh_->Idle(); }

void TcpWorld::ShareBlockedCalls(const std::vector<WaitingCall>& calls) {
  mesh_->control().SetBroadcast(calls.empty() ? "" : EncodeWaitingCalls(calls));
}

WaitingRanks TcpWorld::OthersBlocked() const {
  WaitingRanks blocked;
  for (const auto& [rank, broadcast] : mesh_->control().Broadcasts()) {
    auto calls = DecodeWaitingCalls(broadcast);
    if (calls.ok()) blocked[rank] = *std::move(calls);
  }
  return blocked;
}

absl::Duration TcpWorld::broadcast_age() const { return mesh_->control().broadcast_age(); }

}  // namespace megatron
