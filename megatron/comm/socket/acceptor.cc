#include "megatron/comm/socket/acceptor.h"

#include <utility>

#include "glog/logging.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr absl::Duration kLogInterval = absl::Minutes(1);
constexpr absl::Duration kOutOfDescriptorsPause = absl::Milliseconds(100);

}  // namespace

Acceptor::Acceptor(Socket listener, JobSecret secret, const AcceptorOptions& options)
    : listener_(std::move(listener)), secret_(std::move(secret)), options_(options) {}

bool Acceptor::MayTakeNew() const {
  const absl::Time now = SteadyNow();
  if (now < next_accept_) return false;
  return pending_.size() < options_.max_pending ||
         now >= pending_.front().started() + options_.least_time;
}

void Acceptor::AppendTo(std::vector<pollfd>* entries) const {
  if (MayTakeNew()) entries->push_back({listener_.fd(), POLLIN, 0});
  for (const AcceptorHandshake& handshake : pending_) {
    entries->push_back({handshake.socket().fd(), POLLIN, 0});
  }
}

absl::Duration Acceptor::longest_wait() const {
  return pending_.empty() && MayTakeNew() ? absl::Seconds(60) : options_.least_time / 2;
}

std::vector<AcceptedChannel> Acceptor::Accept() {
  std::vector<AcceptedChannel> accepted;
  AdvancePending(&accepted);
  TakeNew();
  return accepted;
}

void Acceptor::AdvancePending(std::vector<AcceptedChannel>* accepted) {
  std::deque<AcceptorHandshake> still_pending;
  const absl::Time now = SteadyNow();
  for (AcceptorHandshake& handshake : pending_) {
    switch (handshake.Advance()) {
      case AcceptorHandshake::Progress::kAccepted:
        accepted->push_back({handshake.Take(), handshake.id()});
        break;
      case AcceptorHandshake::Progress::kRefused:
        Refuse(handshake.socket(), handshake.refusal());
        break;
      case AcceptorHandshake::Progress::kPending:
        if (now < handshake.started() + options_.handshake_time) {
          still_pending.push_back(std::move(handshake));
        } else {
          Refuse(handshake.socket(), "no proof in time");
        }
    }
  }
  pending_ = std::move(still_pending);
}

void Acceptor::TakeNew() {
  while (MayTakeNew()) {
    absl::StatusOr<Socket> socket = AcceptTcp(listener_);
    if (!socket.ok()) {  // out of descriptors
      LOG_EVERY_N(WARNING, 1000) << socket.status().message();
      if (pending_.empty()) {
        status_ = socket.status();
      } else {
        pending_.pop_front();
      }
      next_accept_ = SteadyNow() + kOutOfDescriptorsPause;
      return;
    }
    status_ = absl::OkStatus();
    if (!socket->valid()) return;
    if (pending_.size() >= options_.max_pending) {
      Refuse(pending_.front().socket(), "too many at once");
      pending_.pop_front();
    }
    pending_.emplace_back(*std::move(socket), secret_);
  }
}

void Acceptor::Refuse(const Socket& socket, const char* why) {
  Refusals& refusals = refusals_[why];
  ++refusals.since_logged;
  const absl::Time now = SteadyNow();
  if (now < refusals.next_log) return;
  LOG(WARNING) << "connection from " << PeerText(socket) << " refused: " << why << " ("
               << refusals.since_logged << " such since the last message)";
  refusals = {0, now + kLogInterval};
}

}  // namespace megatron
