#include "megatron/comm/tcp_mesh.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// A rank's messages that nobody has taken yet: it can be one call ahead in each group.
constexpr size_t kMaxStoredBytes = size_t{1} << 30;
constexpr absl::Duration kLongestWait = absl::Seconds(1);

}  // namespace

TcpMesh::Peer::Peer(int rank, TcpPeerSockets sockets)
    : rank(rank),
      address(std::move(sockets.address)),
      data(std::move(sockets.data)),
      control(std::move(sockets.control)),
      last_heard(absl::Now()) {}

absl::StatusOr<std::shared_ptr<TcpMesh>> TcpMesh::Connect(Store* store, const JobSecret& secret,
                                                          const TcpWorldOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(std::vector<TcpPeerSockets> sockets,
                            ConnectRanks(store, secret, options));
  std::vector<std::unique_ptr<Peer>> peers(options.size);
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    peers[peer] = std::make_unique<Peer>(peer, std::move(sockets[peer]));
  }
  return std::shared_ptr<TcpMesh>(new TcpMesh(options, std::move(peers)));
}

TcpMesh::TcpMesh(const TcpWorldOptions& options, std::vector<std::unique_ptr<Peer>> peers)
    : options_(options),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      peers_(std::move(peers)),
      next_tick_(absl::Now() + options.heartbeat_interval) {
  if (size() > 1) thread_ = std::thread([this] { Run(); });
}

TcpMesh::~TcpMesh() { Leave(); }

absl::Status TcpMesh::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

TcpMesh::Activity::Activity(TcpMesh* mesh, absl::FunctionRef<std::string()> describe)
    : mesh_(*mesh), describe_(describe) {
  pthread_getcpuclockid(pthread_self(), &clock_);
  absl::MutexLock lock(&mesh_.mutex_);
  mesh_.activities_.push_back(this);
}

TcpMesh::Activity::~Activity() {
  absl::MutexLock lock(&mesh_.mutex_);
  auto& all = mesh_.activities_;
  all.erase(std::find(all.begin(), all.end(), this));
}

absl::Duration TcpMesh::CallersProcessorTime() const {
  absl::MutexLock lock(&mutex_);
  absl::Duration total;
  for (const Activity* activity : activities_) {
    timespec time = {};
    clock_gettime(activity->clock(), &time);
    total += absl::DurationFromTimespec(time);
  }
  return total;
}

void TcpMesh::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.fd(), &one, sizeof(one));
}

void TcpMesh::Enqueue(TcpChannel* channel, TcpOutFrame frame) {
  channel->Queue(std::move(frame));
  channel->Flush();
  if (channel->has_queued()) Wake();
}

void TcpMesh::Send(const MessageKey& key, std::string message) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok() || stop_) return;
  TcpOutFrame frame;
  frame.header = EncodeFrameHeader({key.kind, key.tag, key.group, key.sequence, message.size()});
  frame.message = std::move(message);
  Enqueue(&peers_[key.peer]->data, std::move(frame));
}

void TcpMesh::SendData(const MessageKey& key, const char* data, size_t bytes,
                       TcpOperation* operation) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok() || stop_) return;
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
  if (!status_.ok() || stop_) return;
  expected_[key] = {data, bytes, operation};
  ++operation->pending;
}

bool TcpMesh::AwaitUntil(const absl::Condition& condition, absl::Time deadline) {
  while (true) {
    const absl::Time next = std::min(deadline, absl::Now() + kLongestWait);
    if (mutex_.AwaitWithDeadline(condition, next)) return true;
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
    return !status_.ok() || stop_ || find() < keys.size() || one_has_left();
  };
  absl::MutexLock lock(&mutex_);
  const bool in_time = AwaitUntil(absl::Condition(&done), deadline);
  if (!status_.ok()) return status_;
  if (stop_) return absl::FailedPreconditionError("this rank has left its world");
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
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || stop_ || operation->pending == 0;
  };
  absl::MutexLock lock(&mutex_);
  const bool in_time = AwaitUntil(absl::Condition(&done), deadline);
  if (!status_.ok()) return status_;
  if (stop_) return absl::FailedPreconditionError("this rank has left its world");
  return in_time ? absl::OkStatus() : absl::DeadlineExceededError("the time is over");
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

void TcpMesh::Run() {
  std::vector<pollfd> entries;
  while (true) {
    absl::Time next_tick;
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
      CollectEntries(&entries);
      next_tick = next_tick_;
    }
    poll(entries.data(), entries.size(), PollMilliseconds(next_tick, absl::Seconds(60)));
    absl::MutexLock lock(&mutex_);
    if (entries[0].revents != 0) {
      uint64_t count;
      (void)!read(wake_.fd(), &count, sizeof(count));
    }
    size_t entry = 1;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      Serve(peer.get(), entries[entry].revents, entries[entry + 1].revents);
      entry += 2;
    }
    if (absl::Now() >= next_tick_) Tick();
  }
}

// After a failure the data connections rest; the others carry reasons to abort and states.
void TcpMesh::CollectEntries(std::vector<pollfd>* entries) {
  entries->assign(1, {wake_.fd(), POLLIN, 0});
  const auto add = [&](const TcpChannel& channel, bool read, bool write) {
    const short events =
        static_cast<short>((read ? POLLIN : 0) | (write && channel.has_queued() ? POLLOUT : 0));
    // Hanging up is reported whether asked for or not: what is not of interest is left out.
    entries->push_back({channel.open() && events != 0 ? channel.socket().fd() : -1, events, 0});
  };
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    add(peer->data, status_.ok(), status_.ok());
    add(peer->control, true, true);
  }
}

void TcpMesh::Serve(Peer* peer, short data_events, short control_events) {
  if (data_events != 0) {
    peer->data.Flush();
    Read(peer, &peer->data);
  }
  if (control_events != 0) {
    peer->control.Flush();
    Read(peer, &peer->control);
  }
}

void TcpMesh::Read(Peer* peer, TcpChannel* channel) {
  const bool control = channel == &peer->control;
  if (!status_.ok() && !control) return;
  bool any = false;
  const absl::Status status = channel->Read(
      {[&](const FrameHeader& header)
           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Begin(peer, control, header); },
       [&](const FrameHeader& header, std::string message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
         return Finish(peer, control, header, std::move(message));
       }},
      &any);
  if (any) peer->last_heard = absl::Now();
  if (!status.ok()) {
    FailBy(*peer, absl::StatusCode::kInternal, absl::StrCat("sent ", status.message()));
  } else if (!channel->open()) {
    Ended(peer, control);
  }
}

void TcpMesh::Ended(Peer* peer, bool control) {
  if (peer->said_farewell) {
    if (!peer->data.open()) Left(peer);
  } else if (control) {
    FailBy(*peer, absl::StatusCode::kUnavailable,
           "is lost: its connection ended without a farewell");
    peer->lost = true;
  }
  // Of the data connection alone: the other one will tell why, or Tick ends the waiting for it.
}

absl::StatusOr<TcpChannel::Target> TcpMesh::Begin(Peer* peer, bool control,
                                                  const FrameHeader& header) {
  const bool of_control = header.kind == FrameKind::kHeartbeat ||
                          header.kind == FrameKind::kAbort || header.kind == FrameKind::kState;
  if (header.kind != FrameKind::kBye && of_control != control) {
    return absl::InvalidArgumentError("a frame on the wrong connection");
  }
  if (header.kind != FrameKind::kData) {
    if (message_bytes_ + header.bytes > kMaxStoredBytes) {
      return absl::InvalidArgumentError("more messages than can be kept");
    }
    return TcpChannel::Target();
  }
  const auto expected = expected_.find(
      MessageKey{FrameKind::kData, peer->rank, header.group, header.sequence, header.tag});
  if (expected == expected_.end() || expected->second.bytes != header.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(header.bytes, " bytes of data that nobody expects"));
  }
  return TcpChannel::Target{expected->second.data};
}

absl::Status TcpMesh::Finish(Peer* peer, bool control, const FrameHeader& header,
                             std::string message) {
  const MessageKey key = {header.kind, peer->rank, header.group, header.sequence, header.tag};
  switch (header.kind) {
    case FrameKind::kData: {
      const auto expected = expected_.find(key);
      if (expected == expected_.end()) return absl::OkStatus();  // the world has failed meanwhile
      --expected->second.operation->pending;
      expected_.erase(expected);
      return absl::OkStatus();
    }
    case FrameKind::kCall:
    case FrameKind::kOffer:
    case FrameKind::kAccept:
      if (!status_.ok()) return absl::OkStatus();
      message_bytes_ += message.size();
      if (messages_.emplace(key, std::move(message)).second) return absl::OkStatus();
      return absl::InvalidArgumentError("the same message twice");
    case FrameKind::kHeartbeat:
      return absl::OkStatus();
    case FrameKind::kBye:
      if (control) {
        peer->said_farewell = true;
      } else {
        Left(peer);
      }
      return absl::OkStatus();
    case FrameKind::kAbort:
      FailLocked(AbortMessage::Decode(message), /*tell=*/false, static_cast<int>(header.tag) - 1);
      return absl::OkStatus();
    case FrameKind::kState:
      states_[peer->rank] = std::move(message);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

void TcpMesh::Left(Peer* peer) {
  peer->left = true;
  bool owes = false;
  for (const auto& [key, expected] : expected_) owes |= key.peer == peer->rank;
  if (!owes) return;
  FailLocked(
      absl::UnavailableError(absl::StrCat(Describe(*peer), " has left in the middle of a call")),
      true);
}

void TcpMesh::Tick() {
  const absl::Time now = absl::Now();
  // This process itself may have been stopped: that says nothing about the others.
  const bool was_away = now > next_tick_ + options_.silence_limit / 2;
  next_tick_ = now + options_.heartbeat_interval;
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->left || !status_.ok()) continue;
    if (!peer->control.has_queued()) {
      TcpOutFrame beat;
      beat.header = EncodeFrameHeader({FrameKind::kHeartbeat, 0, 0, 0, 0});
      Enqueue(&peer->control, std::move(beat));
    }
    if (was_away) peer->last_heard = now;
    if (now > peer->last_heard + options_.silence_limit) {
      FailBy(
          *peer, absl::StatusCode::kDeadlineExceeded,
          absl::StrCat("has given no sign of life for ",
                       absl::FormatDuration(options_.silence_limit), ": it is stopped or cut off"));
    }
    if (peer->data_ended) {
      FailBy(*peer, absl::StatusCode::kUnavailable, "is lost: its data connection ended");
    }
    peer->data_ended = !peer->data.open();
  }
}

}  // namespace megatron
