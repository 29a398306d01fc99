#include "megatron/comm/tcp/tcp_connect.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/acceptor.h"
#include "megatron/comm/socket/handshake.h"
#include "megatron/comm/socket/hmac_sha256.h"

namespace megatron {
namespace {

// Each rank connects to those below it and is connected to by those above it.
class RankConnector {
 public:
  RankConnector(Store* store, const JobSecret& secret, const TcpWorldOptions& options)
      : store_(*store),
        secret_(secret),
        options_(options),
        deadline_(SteadyNow() + options.connect_deadline),
        peers_(options.size) {
    const Sha256Digest digest = Sha256(options.name);
    std::memcpy(&world_, digest.data(), sizeof(world_));
  }

  absl::StatusOr<std::vector<TcpPeerSockets>> Connect() {
    MEGATRON_ASSIGN_OR_RETURN(const int64_t comers,
                              store_.Add(absl::StrCat(Key(options_.rank), "/comers"), 1));
    if (comers > 1) {
      return absl::AlreadyExistsError(
          absl::StrCat("another process is ", Name(options_.rank), " already"));
    }
    MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp({options_.host, 0}));
    MEGATRON_ASSIGN_OR_RETURN(const Endpoint endpoint, LocalEndpoint(listener));
    MEGATRON_RETURN_IF_ERROR(store_.Set(Key(options_.rank), endpoint.ToString()));
    absl::Status accepted;
    std::thread acceptor([&] { accepted = AcceptThoseAbove(std::move(listener)); });
    const absl::Status connected = ConnectToThoseBelow();
    if (!connected.ok()) give_up_ = true;
    acceptor.join();
    if (is_over_) return absl::CancelledError("the ranks that are there meet elsewhere");
    // The other half has given up because of it, and its error says less.
    if (absl::IsResourceExhausted(accepted)) return accepted;
    MEGATRON_RETURN_IF_ERROR(connected);
    MEGATRON_RETURN_IF_ERROR(accepted);
    return std::move(peers_);
  }

 private:
  std::string Key(int rank) const { return absl::StrCat(options_.name, "/rank/", rank); }

  // Returns what wait(until) does, which ends at `until`, as soon as it succeeds, fails for another
  // reason than time, or this process gives up.
  template <typename Wait>
  auto Await(Wait wait) -> decltype(wait(absl::Time())) {
    while (true) {
      // A peer that answers slowly must have the time to: what ends early begins anew.
      const absl::Time until = std::min(deadline_, SteadyNow() + kPatience);
      auto result = wait(until);
      const absl::StatusCode code = result.status().code();
      const bool is_late =
          code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kUnavailable;
      if (!is_late || until == deadline_ || SteadyNow() < until || GivesUp()) return result;
    }
  }

  bool GivesUp() {
    if (give_up_ || !options_.is_over) return give_up_;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (SteadyNow() < next_question_) return give_up_;
    if (options_.is_over()) give_up_ = is_over_ = true;
    next_question_ = SteadyNow() + kQuestions;
    return give_up_;
  }

  absl::Status ConnectToThoseBelow() {
    for (int peer = 0; peer < options_.rank; ++peer) {
      MEGATRON_ASSIGN_OR_RETURN(const std::string address, Await([&](absl::Time until) {
                                  return store_.Get(Key(peer), until - SteadyNow());
                                }));
      MEGATRON_ASSIGN_OR_RETURN(Endpoint endpoint, Endpoint::Parse(address));
      peers_[peer].address = address;
      if (options_.route) {
        MEGATRON_ASSIGN_OR_RETURN(endpoint, options_.route(peer, endpoint));
      }
      MEGATRON_ASSIGN_OR_RETURN(peers_[peer].data,
                                ConnectTo(peer, endpoint, ChannelPurpose::kData));
      MEGATRON_ASSIGN_OR_RETURN(peers_[peer].control,
                                ConnectTo(peer, endpoint, ChannelPurpose::kControl));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Socket> ConnectTo(int peer, const Endpoint& endpoint, ChannelPurpose purpose) {
    ChannelId id;
    id.purpose = purpose;
    id.from = options_.rank;
    id.to = peer;
    id.world = world_;
    absl::StatusOr<Socket> socket =
        Await([&](absl::Time until) { return ConnectToJob(endpoint, secret_, id, until); });
    MEGATRON_RETURN_IF_ERROR(
        socket.status(), _ << "while connecting " << Name(options_.rank) << " to " << Name(peer));
    return socket;
  }

  absl::Status AcceptThoseAbove(Socket listener) {
    Acceptor acceptor(std::move(listener), secret_);
    const absl::Time begin = SteadyNow();
    absl::Time last_able = begin;  // to take a connection
    absl::Duration notice = options_.first_notice;
    for (std::vector<int> missing = Missing(); !missing.empty() && !GivesUp();
         missing = Missing()) {
      if (SteadyNow() >= deadline_) {
        return absl::DeadlineExceededError(absl::StrCat(
            Name(options_.rank), ": after ", absl::FormatDuration(options_.connect_deadline),
            " still missing: ", Names(missing)));
      }
      if (options_.rank == 0 && options_.on_waiting && SteadyNow() >= begin + notice) {
        options_.on_waiting(missing);
        notice *= 2;
      }
      std::vector<pollfd> entries;
      acceptor.AppendTo(&entries);
      // The wait is short, to notice when the other half has failed.
      poll(entries.data(), entries.size(),
           PollMilliseconds(deadline_, std::min(acceptor.longest_wait(), kGlance)));
      for (AcceptedChannel& channel : acceptor.Accept()) Take(&channel);
      if (acceptor.status().ok()) {
        last_able = SteadyNow();
      } else if (SteadyNow() >= last_able + kPatience) {
        // No descriptor comes free, and the other half must not wait for one.
        give_up_ = true;
        return absl::Status(acceptor.status().code(),
                            absl::StrCat(Name(options_.rank), ": ", acceptor.status().message()));
      }
    }
    return absl::OkStatus();
  }

  // A connection that does not fit comes from a confused process. Dropping it tells that process
  // so.
  void Take(AcceptedChannel* channel) {
    const ChannelId& id = channel->id;
    if (id.world != world_ || id.to != options_.rank || id.from <= options_.rank ||
        id.from >= options_.size) {
      return;
    }
    TcpPeerSockets& peer = peers_[id.from];
    peer.address = PeerText(channel->socket);
    if (id.purpose == ChannelPurpose::kData) peer.data = std::move(channel->socket);
    if (id.purpose == ChannelPurpose::kControl) peer.control = std::move(channel->socket);
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = options_.rank + 1; peer < options_.size; ++peer) {
      if (!peers_[peer].data.valid() || !peers_[peer].control.valid()) missing.push_back(peer);
    }
    return missing;
  }

  std::string Names(const std::vector<int>& ranks) const {
    return absl::StrJoin(ranks, ", ", [this](std::string* out, int rank) { *out += Name(rank); });
  }

  std::string Name(int rank) const { return absl::StrCat("rank ", rank, " of ", options_.name); }

  static constexpr absl::Duration kGlance = absl::Milliseconds(50);
  static constexpr absl::Duration kPatience = absl::Seconds(3);
  static constexpr absl::Duration kQuestions = absl::Seconds(1);

  Store& store_;
  const JobSecret& secret_;
  const TcpWorldOptions& options_;
  const absl::Time deadline_;
  uint64_t world_ = 0;
  std::atomic<bool> give_up_{false}, is_over_{false};
  std::mutex mutex_;  // held while options_.is_over is asked
  absl::Time next_question_ = SteadyNow() + kQuestions;
  // The two halves touch different elements.
  std::vector<TcpPeerSockets> peers_;
};

}  // namespace

absl::StatusOr<std::vector<TcpPeerSockets>> ConnectRanks(Store* store, const JobSecret& secret,
                                                         const TcpWorldOptions& options) {
  return RankConnector(store, secret, options).Connect();
}

}  // namespace megatron
