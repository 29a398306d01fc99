// How a world ends: by a failure that all hear of, or in good order.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/comm/tcp_mesh.h"

namespace megatron {
namespace {

// For what was sent to arrive; after a failure some of it never will.
constexpr absl::Duration kFarewellTime = absl::Seconds(5);
constexpr absl::Duration kFailedFarewellTime = absl::Seconds(1);

}  // namespace

void TcpMesh::Fail(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  FailLocked(reason, /*tell=*/true);
}

void TcpMesh::FailBy(const Peer& peer, absl::StatusCode code, const std::string& what) {
  if (!status_.ok()) return;
  std::string text = absl::StrCat(Describe(peer), " ", what);
  for (const Activity* activity : activities_) {
    absl::StrAppend(&text, "; ", activity->Describe());
  }
  FailLocked(absl::Status(code, text), /*tell=*/true, peer.rank);
}

std::string TcpMesh::Describe(const Peer& peer) const {
  return absl::StrCat("rank ", peer.rank, " of ", options_.name, " (", peer.address, ")");
}

// Nobody's memory is touched any more: expected parts and queued ones are forgotten.
void TcpMesh::FailLocked(const absl::Status& reason, bool tell, int lost) {
  if (reason.ok()) return;
  if (lost >= 0 && lost < size() && lost != rank()) peers_[lost]->lost = true;
  if (!status_.ok()) return;
  if (failure_hook_) failure_hook_(reason);
  status_ = reason;
  for (const Activity* activity : activities_) doing_.push_back(activity->Describe());
  expected_.clear();
  messages_.clear();
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    peer->data.DropQueued();
    if (!tell) continue;
    TcpOutFrame frame;
    frame.message = AbortMessage::Encode(reason);
    frame.header = EncodeFrameHeader(
        {FrameKind::kAbort, static_cast<uint32_t>(lost + 1), 0, 0, frame.message.size()});
    Enqueue(&peer->control, std::move(frame));
  }
  Wake();
}

void TcpMesh::SetFailureHook(std::function<void(const absl::Status&)> hook) {
  absl::MutexLock lock(&mutex_);
  failure_hook_ = std::move(hook);
}

std::vector<std::string> TcpMesh::Doing() const {
  absl::MutexLock lock(&mutex_);
  return doing_;
}

std::vector<int> TcpMesh::LiveRanks() const {
  absl::MutexLock lock(&mutex_);
  return LiveRanksLocked();
}

std::vector<int> TcpMesh::LiveRanksLocked() const {
  std::vector<int> live;
  for (int peer = 0; peer < size(); ++peer) {
    const Peer* const other = peers_[peer].get();
    if (other == nullptr || (!other->lost && !other->said_farewell)) live.push_back(peer);
  }
  return live;
}

std::optional<std::map<int, std::string>> TcpMesh::GatherStates(std::string state,
                                                                absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const int teller = LiveRanksLocked().front();
  if (teller != rank()) {
    TcpOutFrame frame;
    frame.message = state.substr(0, kMaxMessageBytes);
    frame.header = EncodeFrameHeader({FrameKind::kState, 0, 0, 0, frame.message.size()});
    Enqueue(&peers_[teller]->control, std::move(frame));
    return std::nullopt;
  }
  states_[rank()] = std::move(state);
  const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::all_of(peers_.begin(), peers_.end(), [&](const std::unique_ptr<Peer>& peer) {
      return peer == nullptr || peer->lost || peer->said_farewell || states_.count(peer->rank) > 0;
    });
  };
  mutex_.AwaitWithDeadline(absl::Condition(&all), deadline);
  return states_;
}

void TcpMesh::Leave() {
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      TcpOutFrame farewell;
      farewell.header = EncodeFrameHeader({FrameKind::kBye, 0, 0, 0, 0});
      if (status_.ok()) Enqueue(&peer->data, farewell);
      Enqueue(&peer->control, std::move(farewell));
    }
  }
  // Closing a connection on which something has arrived unread throws away what was sent.
  const absl::Time deadline = absl::Now() + (status().ok() ? kFarewellTime : kFailedFarewellTime);
  while (absl::Now() < deadline) {
    absl::MutexLock lock(&mutex_);
    if (Quiet()) break;
    const bool never = false;
    mutex_.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(1));
  }
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mutex_);
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    peer->data.Close();
    peer->control.Close();
  }
}

bool TcpMesh::Quiet() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const std::unique_ptr<Peer>& peer) {
    return peer == nullptr ||
           ((!status_.ok() || peer->data.AllAcknowledged()) && peer->control.AllAcknowledged());
  });
}

}  // namespace megatron
