#include "megatron/comm/tcp/tcp_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/patient_lock.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

// A rank's messages that nobody has taken yet: it can be one call ahead in each group.
constexpr size_t kMaxStoredBytes = size_t{1} << 30;
constexpr absl::Duration kLongestWait = absl::Milliseconds(250);
constexpr absl::Duration kLockPatience = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::shared_ptr<TcpMesh>> TcpMesh::Connect(Store* store, const JobSecret& secret,
                                                          const TcpWorldOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  MEGATRON_ASSIGN_OR_RETURN(WakeEvent wake_control, WakeEvent::Create());
  MEGATRON_ASSIGN_OR_RETURN(std::vector<TcpPeerSockets> sockets,
                            ConnectRanks(store, secret, options));
  return std::shared_ptr<TcpMesh>(
      new TcpMesh(options, std::move(sockets), std::move(wake), std::move(wake_control)));
}

TcpMesh::TcpMesh(const TcpWorldOptions& options, std::vector<TcpPeerSockets> sockets,
                 WakeEvent wake, WakeEvent wake_control)
    : options_(options),
      wake_(std::move(wake)),
      control_(options, &sockets, &activities_, std::move(wake_control), [this] { wake_.Set(); }),
      peers_(options.size) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers_[peer] = std::make_unique<Peer>(peer, std::move(sockets[peer].data));
  }
  if (size() > 1) thread_ = std::thread([this] { Run(); });
}

TcpMesh::~TcpMesh() { Leave(); }

void TcpMesh::Fail(const absl::Status& reason) {
  if (reason.ok()) return;
  control_.Fail(reason);
  absl::MutexLock lock(&mutex_);
  EndCalls();
}

// Nobody's memory is touched any more: expected parts and queued ones are forgotten.
void TcpMesh::EndCalls() {
  if (ended_) return;
  ended_ = true;
  expected_.clear();
  messages_.clear();
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->data.DropQueued();
  }
}

absl::Status TcpMesh::WhyOver() const {
  if (ended_) return status();
  return absl::FailedPreconditionError("this rank has left its world");
}

void TcpMesh::Enqueue(TcpChannel* channel, TcpOutFrame frame) {
  channel->Queue(std::move(frame));
  channel->Flush();
  if (channel->has_queued()) wake_.Set();
}

void TcpMesh::Send(const MessageKey& key, std::string message) {
  absl::MutexLock lock(&mutex_);
  if (over()) return;
  TcpOutFrame frame;
  frame.header = EncodeFrameHeader({key.kind, key.tag, key.group, key.sequence, message.size()});
  frame.message = std::move(message);
  Enqueue(&peers_[key.peer]->data, std::move(frame));
}

void TcpMesh::SendData(const MessageKey& key, const char* data, size_t bytes,
                       TcpOperation* operation) {
  absl::MutexLock lock(&mutex_);
  if (over()) return;
  TcpOutFrame frame;
  frame.header = EncodeFrameHeader({FrameKind::kData, key.tag, key.group, key.sequence, bytes});
  frame.data = data;
  frame.data_bytes = bytes;
  frame.operation = operation;
  ++operation->pending;
  Enqueue(&peers_[key.peer]->data, std::move(frame));
}

void TcpMesh::ReceiveData(const MessageKey& key, char* data, size_t bytes,
                          TcpOperation* operation) {
  absl::MutexLock lock(&mutex_);
  if (over()) return;
  expected_[key] = {data, bytes, operation};
  ++operation->pending;
}

bool TcpMesh::AwaitUntil(const absl::Condition& condition, absl::Time deadline) {
  while (true) {
    const absl::Time next = std::min(deadline, SteadyNow() + kLongestWait);
    if (mutex_.AwaitWithTimeout(condition, next - SteadyNow())) return true;
    if (next == deadline) return false;
  }
}

absl::StatusOr<TcpMesh::Received> TcpMesh::ReceiveAny(absl::Span<const MessageKey> keys,
                                                      absl::Time deadline) {
  const auto find = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    size_t i = 0;
    while (i < keys.size() && messages_.count(keys[i]) == 0) ++i;
    return i;
  };
  const auto one_has_left = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const MessageKey& key) { return peers_[key.peer]->left; });
  };
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return over() || find() < keys.size() || one_has_left();
  };
  absl::MutexLock lock(&mutex_);
  const bool in_time = AwaitUntil(absl::Condition(&done), deadline);
  if (over()) return WhyOver();
  const size_t found = find();
  if (found == keys.size()) {
    if (!in_time) return absl::DeadlineExceededError("the time is over");
    return absl::UnavailableError("a rank has left");
  }
  const auto message = messages_.find(keys[found]);
  Received received = {found, std::move(message->second)};
  message_bytes_ -= received.message.size();
  messages_.erase(message);
  return received;
}

absl::Status TcpMesh::Await(TcpOperation* operation, absl::Time deadline) {
  const auto one_has_left = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return any_left_ && std::any_of(expected_.begin(), expected_.end(), [&](const auto& expected) {
             return expected.second.operation == operation && peers_[expected.first.peer]->left;
           });
  };
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return over() || operation->pending == 0 || one_has_left();
  };
  absl::MutexLock lock(&mutex_);
  const bool in_time = AwaitUntil(absl::Condition(&done), deadline);
  if (over()) return WhyOver();
  if (operation->pending == 0) return absl::OkStatus();
  return in_time ? absl::UnavailableError("a rank has left")
                 : absl::DeadlineExceededError("the time is over");
}

std::vector<int> TcpMesh::AwaitedPeers(const TcpOperation* operation) const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> awaited;
  for (const auto& [key, expected] : expected_) {
    if (expected.operation == operation) awaited.push_back(key.peer);
  }
  for (const auto& peer : peers_) {
    if (peer != nullptr && peer->data.QueuesFor(operation)) awaited.push_back(peer->rank);
  }
  std::sort(awaited.begin(), awaited.end());
  awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
  return awaited;
}

bool TcpMesh::has_left(int peer) const {
  absl::MutexLock lock(&mutex_);
  return peers_[peer]->left;
}

bool TcpMesh::Idle() const {
  const PatientLock lock(&mutex_, kLockPatience);
  return lock.held() &&
         std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) {
           return peer == nullptr || peer->data.Idle();
         });
}

void TcpMesh::Run() {
  std::vector<pollfd> entries;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!control_.ok()) EndCalls();
      if (stop_) return;
      CollectEntries(&entries);
    }
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) wake_.Clear();
    absl::MutexLock lock(&mutex_);
    size_t entry = 1;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      if (entries[entry++].revents != 0) Serve(peer.get());
      if (!peer->data.open() && !peer->left && control_.said_goodbye(peer->rank)) Left(peer.get());
    }
  }
}

// The data connections are not served after a failure.
void TcpMesh::CollectEntries(std::vector<pollfd>* entries) {
  entries->assign(1, {wake_.fd(), POLLIN, 0});
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    const short events = static_cast<short>(POLLIN | (peer->data.has_queued() ? POLLOUT : 0));
    // poll reports a hang-up whether asked for or not: a negative descriptor leaves it out.
    const bool listen = peer->data.open() && !ended_;
    entries->push_back({listen ? peer->data.socket().fd() : -1, events, 0});
  }
}

void TcpMesh::Serve(Peer* peer) {
  if (ended_) return;
  peer->data.Flush();
  bool any = false;
  const absl::Status status = peer->data.Read(
      {[&](const FrameHeader& header)
           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Begin(*peer, header); },
       [&](const FrameHeader& header, std::string message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
         return Finish(peer, header, std::move(message));
       }},
      &any);
  if (!status.ok()) {
    control_.FailBy(peer->rank, absl::StatusCode::kInternal,
                    absl::StrCat("sent ", status.message()));
    EndCalls();
  } else if (!peer->data.open() && !peer->left) {
    control_.DataEnded(peer->rank);  // the control connection will tell why
  }
}

absl::StatusOr<TcpChannel::Target> TcpMesh::Begin(const Peer& peer, const FrameHeader& header) {
  switch (header.kind) {
    case FrameKind::kHeartbeat:
    case FrameKind::kAbort:
    case FrameKind::kState:
      return absl::InvalidArgumentError("a frame on the wrong connection");
    case FrameKind::kCall:
    case FrameKind::kOffer:
    case FrameKind::kAccept:
    case FrameKind::kGoodbye:
      if (message_bytes_ + header.bytes <= kMaxStoredBytes) return TcpChannel::Target();
      return absl::InvalidArgumentError("more messages than can be kept");
    case FrameKind::kData:
      break;
  }
  const auto expected = expected_.find(
      MessageKey{FrameKind::kData, peer.rank, header.group, header.sequence, header.tag});
  if (expected == expected_.end() || expected->second.bytes != header.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(header.bytes, " bytes of data that nobody expects"));
  }
  return TcpChannel::Target{expected->second.data};
}

absl::Status TcpMesh::Finish(Peer* peer, const FrameHeader& header, std::string message) {
  if (ended_) return absl::OkStatus();  // it has failed meanwhile
  const MessageKey key = {header.kind, peer->rank, header.group, header.sequence, header.tag};
  if (header.kind == FrameKind::kGoodbye) {
    Left(peer);
    return absl::OkStatus();
  }
  if (header.kind == FrameKind::kData) {
    const auto expected = expected_.find(key);
    --expected->second.operation->pending;
    expected_.erase(expected);
    return absl::OkStatus();
  }
  message_bytes_ += message.size();
  if (!messages_.emplace(key, std::move(message)).second) {
    return absl::InvalidArgumentError("the same message twice");
  }
  return absl::OkStatus();
}

// Calls that wait for what it owes them notice it.
void TcpMesh::Left(Peer* peer) {
  peer->left = true;
  any_left_ = true;
}

// It waits for what was sent to arrive. After a failure some of it never will.
void TcpMesh::Leave() {
  constexpr absl::Duration kGoodbyeTime = absl::Seconds(5);
  constexpr absl::Duration kFailedGoodbyeTime = absl::Seconds(1);
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return;
    for (const auto& peer : peers_) {
      if (peer == nullptr || !control_.ok()) continue;
      TcpOutFrame goodbye;
      goodbye.header = EncodeFrameHeader({FrameKind::kGoodbye, 0, 0, 0, 0});
      Enqueue(&peer->data, std::move(goodbye));
    }
  }
  control_.SayGoodbye();
  // Closing a connection with unread data discards what was sent.
  const absl::Time deadline = SteadyNow() + (status().ok() ? kGoodbyeTime : kFailedGoodbyeTime);
  while (SteadyNow() < deadline) {
    absl::MutexLock lock(&mutex_);
    if (AllArrived()) break;
    const bool never = false;
    mutex_.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(1));
  }
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  wake_.Set();
  if (thread_.joinable()) thread_.join();
  control_.Stop();
  absl::MutexLock lock(&mutex_);
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->data.Close();
  }
}

bool TcpMesh::AllArrived() const {
  const auto arrived = [&](const std::unique_ptr<Peer>& peer) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return peer == nullptr || !control_.ok() || peer->data.AllAcknowledged();
  };
  return std::all_of(peers_.begin(), peers_.end(), arrived) && control_.AllArrived();
}

}  // namespace megatron
