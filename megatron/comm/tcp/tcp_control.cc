#include "megatron/comm/tcp/tcp_control.h"

#include <poll.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/patient_lock.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

// A thread that takes longer to report a failure hangs.
constexpr absl::Duration kReportPatience = absl::Seconds(3);
// The time in which ranks that were lost together with another are found to be lost, too.
constexpr absl::Duration kLostTogether = absl::Milliseconds(300);

}  // namespace

TcpControl::Peer::Peer(int rank, TcpPeerSockets* sockets)
    : rank(rank),
      address(sockets->address),
      channel(std::move(sockets->control)),
      last_heard(absl::ToUnixNanos(SteadyNow())) {}

TcpControl::TcpControl(const TcpWorldOptions& options, std::vector<TcpPeerSockets>* sockets,
                       const CallActivities* activities, WakeEvent wake,
                       std::function<void()> changed)
    : options_(options),
      activities_(*activities),
      changed_(std::move(changed)),
      wake_(std::move(wake)),
      peers_([&] {
        std::vector<std::unique_ptr<Peer>> peers(options.size);
        for (int peer = 0; peer < options.size; ++peer) {
          if (peer == options.rank) continue;
          peers[peer] = std::make_unique<Peer>(peer, &(*sockets)[peer]);
        }
        return peers;
      }()) {
  if (options.size > 1) thread_ = std::thread([this] { Run(); });
}

void TcpControl::SetFailureHook(FailureHook hook) {
  absl::MutexLock lock(&fail_mutex_);
  failure_hook_ = std::move(hook);
}

std::string TcpControl::Describe(int peer) const {
  return absl::StrCat("rank ", peer, " of ", options_.name, " (", peers_[peer]->address, ")");
}

void TcpControl::FailBy(int peer, absl::StatusCode code, const std::string& what) {
  if (!ok()) {
    peers_[peer]->lost = true;
    return;
  }
  std::string text = absl::StrCat(Describe(peer), " ", what);
  for (const std::string& line : activities_.Describe()) absl::StrAppend(&text, "; ", line);
  Fail(absl::Status(code, text), peer);
}

void TcpControl::Fail(const absl::Status& reason, int lost, bool broadcast) {
  if (reason.ok()) return;
  if (lost >= 0 && lost < options_.size && lost != options_.rank) peers_[lost]->lost = true;
  {
    const PatientLock lock(&fail_mutex_, kReportPatience);
    if (!ok()) return;
    if (lost == options_.rank) is_missed_ = true;
    MarkSilentRanksLost();
    if (broadcast) SendAbort(reason, lost);
    if (lock.held()) {
      if (failure_hook_) failure_hook_(reason);
      calls_at_failure_ = activities_.Describe();
      calls_at_failure_known_.store(true, std::memory_order_release);
    }
    failure_.Set(reason);
  }
  changed_();
}

void TcpControl::MarkSilentRanksLost() {
  const absl::Time oldest = SteadyNow() - options_.silence_limit / 2;
  for (const auto& peer : peers_) {
    if (peer != nullptr && absl::FromUnixNanos(peer->last_heard) < oldest) peer->lost = true;
  }
}

void TcpControl::SendAbort(const absl::Status& reason, int lost) {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      Send(peer.get(), FrameKind::kAbort, AbortMessage::Encode(reason), lost + 1);
    }
  }
  wake_.Set();
}

void TcpControl::Send(Peer* peer, FrameKind kind, std::string message, uint32_t tag) {
  TcpOutFrame frame;
  frame.message = std::move(message);
  frame.header = EncodeFrameHeader({kind, tag, 0, 0, frame.message.size()});
  peer->channel.Queue(std::move(frame));
  peer->channel.Flush();
}

void TcpControl::Run() {
  absl::Time next_tick = SteadyNow() + options_.heartbeat_interval;
  std::vector<pollfd> entries;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
      entries.assign(1, {wake_.fd(), POLLIN, 0});
      for (const auto& peer : peers_) {
        if (peer == nullptr) continue;
        const TcpChannel& channel = peer->channel;
        const short events = static_cast<short>(POLLIN | (channel.has_queued() ? POLLOUT : 0));
        entries.push_back({channel.open() ? channel.socket().fd() : -1, events, 0});
      }
    }
    poll(entries.data(), entries.size(), PollMilliseconds(next_tick, absl::Seconds(60)));
    if (entries[0].revents != 0) wake_.Clear();
    size_t entry = 1;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      if (entries[entry++].revents != 0) Serve(peer.get());
    }
    if (SteadyNow() < next_tick) continue;
    Tick(next_tick);
    next_tick = SteadyNow() + options_.heartbeat_interval;
  }
}

void TcpControl::Serve(Peer* peer) {
  absl::Status heard, abort;
  bool ended = false, any = false;
  uint32_t abort_tag = 0;
  {
    absl::MutexLock lock(&mutex_);
    peer->channel.Flush();
    const auto begin = [](const FrameHeader& header) -> absl::StatusOr<TcpChannel::Target> {
      if (header.kind == FrameKind::kHeartbeat || header.kind == FrameKind::kAbort ||
          header.kind == FrameKind::kState || header.kind == FrameKind::kGoodbye) {
        return TcpChannel::Target();
      }
      return absl::InvalidArgumentError("a frame on the wrong connection");
    };
    const auto finish = [&](const FrameHeader& header, std::string message)
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                              if (header.kind == FrameKind::kGoodbye) peer->said_goodbye = true;
                              if (header.kind == FrameKind::kHeartbeat) {
                                peer->awaits_us = header.tag != 0;
                                peer->broadcast = std::move(message);
                                peer->broadcast_at = SteadyNow();
                              }
                              if (header.kind == FrameKind::kState)
                                states_[peer->rank] = std::move(message);
                              if (header.kind == FrameKind::kAbort && abort.ok()) {
                                abort = AbortMessage::Decode(message);
                                abort_tag = header.tag;
                              }
                              return absl::OkStatus();
                            };
    heard = peer->channel.Read({begin, finish}, &any);
    ended = !peer->channel.open();
  }
  if (any) {
    peer->last_heard = absl::ToUnixNanos(SteadyNow());
    peer->is_connected = true;
  }
  Fail(abort, static_cast<int>(abort_tag) - 1, /*broadcast=*/false);
  if (!heard.ok()) {
    FailBy(peer->rank, absl::StatusCode::kInternal, absl::StrCat("sent ", heard.message()));
  } else if (ended && !peer->said_goodbye) {
    FailBy(peer->rank, absl::StatusCode::kUnavailable,
           "is lost: its connection ended without a goodbye");
  }
  if (peer->said_goodbye) changed_();
}

void TcpControl::Tick(absl::Time due) {
  const absl::Time now = SteadyNow();
  // The time for which this process itself was stopped, or waited for a processor, says nothing
  // about the others, which may have waited with it. So silence is counted in heartbeats of this
  // process: where a machine has too much to do, both are late.
  const absl::Duration away = now - due;
  const std::set<int> awaited = activities_.Awaited();
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->said_goodbye || !ok()) continue;
    {
      absl::MutexLock lock(&mutex_);
      if (!peer->channel.has_queued()) {
        Send(peer.get(), FrameKind::kHeartbeat, own_broadcast_,
             awaited.count(peer->rank) > 0 ? 1 : 0);
      }
    }
    peer->last_heard =
        peer->is_connected
            ? std::min(absl::ToUnixNanos(now), peer->last_heard + absl::ToInt64Nanoseconds(away))
            : absl::ToUnixNanos(now);
    if (now > absl::FromUnixNanos(peer->last_heard) + options_.silence_limit) {
      FailBy(
          peer->rank, absl::StatusCode::kDeadlineExceeded,
          absl::StrCat("has given no sign of life for ",
                       absl::FormatDuration(options_.silence_limit), ": it is stopped or cut off"));
    } else if (peer->data_had_ended) {
      FailBy(peer->rank, absl::StatusCode::kUnavailable, "is lost: its data connection ended");
    }
    peer->data_had_ended = peer->data_ended;
  }
}

void TcpControl::AllAreConnected() {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->is_connected = true;
  }
}

bool TcpControl::IsAwaited() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) {
    return peer != nullptr && peer->awaits_us;
  });
}

void TcpControl::SetBroadcast(std::string broadcast) {
  absl::MutexLock lock(&mutex_);
  own_broadcast_ = std::move(broadcast);
}

std::map<int, std::string> TcpControl::Broadcasts() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time oldest = SteadyNow() - broadcast_age();
  std::map<int, std::string> broadcasts;
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->broadcast.empty() || peer->broadcast_at < oldest) continue;
    broadcasts[peer->rank] = peer->broadcast;
  }
  return broadcasts;
}

std::vector<int> TcpControl::LiveRanks() const {
  std::vector<int> live;
  for (int rank = 0; rank < options_.size; ++rank) {
    const Peer* const peer = peers_[rank].get();
    if (peer == nullptr || (!peer->lost && !peer->said_goodbye)) live.push_back(rank);
  }
  return live;
}

std::vector<std::string> TcpControl::CallsAtFailure() const {
  return calls_at_failure_known_.load(std::memory_order_acquire) ? calls_at_failure_
                                                                 : std::vector<std::string>();
}

std::optional<std::map<int, std::string>> TcpControl::GatherStates(std::string state,
                                                                   absl::Time deadline) {
  if (is_missed_) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  int reporter = LiveRanks().front();
  while (reporter != options_.rank) {
    Send(peers_[reporter].get(), FrameKind::kState, state.substr(0, kMaxMessageBytes));
    wake_.Set();
    const std::atomic<bool>& lost = peers_[reporter]->lost;
    const auto is_lost = [&lost] { return lost.load(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is_lost), kLostTogether)) return std::nullopt;
    reporter = LiveRanks().front();
  }
  states_[reporter] = std::move(state);
  const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::all_of(peers_.begin(), peers_.end(), [&](const std::unique_ptr<Peer>& peer) {
      return peer == nullptr || peer->lost || peer->said_goodbye || states_.count(peer->rank) > 0;
    });
  };
  mutex_.AwaitWithTimeout(absl::Condition(&all), deadline - SteadyNow());
  return states_;
}

void TcpControl::SayGoodbye() {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& peer : peers_) {
      if (peer != nullptr) Send(peer.get(), FrameKind::kGoodbye, "");
    }
  }
  wake_.Set();
}

bool TcpControl::AllArrived() const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) {
    return peer == nullptr || peer->channel.AllAcknowledged();
  });
}

void TcpControl::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  wake_.Set();
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mutex_);
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->channel.Close();
  }
}

}  // namespace megatron
