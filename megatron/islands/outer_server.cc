#include "megatron/islands/outer_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kLongestPoll = absl::Seconds(5);
constexpr absl::Duration kDrainTime = absl::Seconds(1);

IslandMessage Answer(const absl::Status& status) {
  IslandMessage answer;
  answer.kind = IslandMessageKind::kAnswer;
  answer.status = status;
  return answer;
}

// Notices a host that has gone without a word.
void KeepAlive(const Socket& socket, absl::Duration silence_limit) {
  const int seconds = static_cast<int>(absl::ToInt64Seconds(silence_limit));
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket.fd(), level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds / 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds / 6);
  // There are no probes while an answer is on its way. This limit holds for answers and for probes.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

// Reads for a moment what is still coming, so that closing does not take back the last answer.
void Drain(const Socket& socket) {
  shutdown(socket.fd(), SHUT_WR);
  const absl::Time deadline = SteadyNow() + kDrainTime;
  std::string bytes(1 << 16, '\0');
  // ReceiveAll looks at the deadline only where it has to wait.
  while (SteadyNow() < deadline && ReceiveAll(socket, &bytes[0], bytes.size(), deadline).ok()) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<OuterServer>> OuterServer::Start(const OuterServerOptions& options,
                                                                const JobSecret& secret,
                                                                FileSystem& fs) {
  const FederatedOptions& federated = options.federated;
  if (federated.enabled()) {
    MEGATRON_RETURN_IF_ERROR(CheckFederated(federated));
  }
  if (federated.has_noise()) {
    if (options.state_file.empty()) {
      return absl::InvalidArgumentError(
          "noise needs a file for the state, which keeps the privacy budget");
    }
    MEGATRON_RETURN_IF_ERROR(BudgetAfter(federated, 0).MayTakeRound());
  }
  std::optional<GlobalCopy> copy;
  if (!options.state_file.empty()) {
    absl::StatusOr<GlobalCopy> loaded =
        GlobalCopy::Load(fs, options.state_file, options.max_parameters);
    if (loaded.ok()) {
      copy = *std::move(loaded);
      const double before = copy->agreement().federated.noise_multiplier;
      if (copy->noised_rounds > 0 &&
          !(federated.has_noise() && federated.noise_multiplier == before)) {
        return absl::FailedPreconditionError(absl::StrCat(
            options.state_file, ": ", copy->noised_rounds,
            " of its rounds had a noise_multiplier of ", before,
            ", and the privacy budget counts rounds of one; start with that, or without ",
            "this state"));
      }
      copy->set_federated(federated);
    } else if (!absl::IsNotFound(loaded.status())) {
      return loaded.status();
    }
    MEGATRON_RETURN_IF_ERROR(GlobalCopy::CheckPath(fs, options.state_file));
  }
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp(options.listen));
  MEGATRON_ASSIGN_OR_RETURN(Endpoint endpoint, LocalEndpoint(listener));
  MEGATRON_ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  std::unique_ptr<OuterServer> server(new OuterServer(options, secret, fs, std::move(listener),
                                                      std::move(endpoint), std::move(wake)));
  {
    absl::MutexLock lock(&server->mutex_);
    server->copy_ = std::move(copy);
    if (server->copy_.has_value()) {
      LOG(INFO) << "the copy is of round " << server->copy_->round << ", from "
                << options.state_file;
      server->LookAtBudget();
    }
  }
  server->thread_ = std::thread([raw = server.get()] { raw->Accept(); });
  return server;
}

OuterServer::OuterServer(const OuterServerOptions& options, const JobSecret& secret, FileSystem& fs,
                         Socket listener, Endpoint endpoint, WakeEvent wake)
    : options_(options),
      fs_(fs),
      endpoint_(std::move(endpoint)),
      acceptor_(std::move(listener), secret),
      wake_(std::move(wake)) {}

OuterServer::~OuterServer() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    for (const Connection& connection : connections_) shutdown(connection.socket.fd(), SHUT_RDWR);
  }
  wake_.Set();
  if (thread_.joinable()) thread_.join();
  // Nobody adds one any more.
  std::list<Connection> connections;
  {
    absl::MutexLock lock(&mutex_);
    for (Connection& connection : connections_) shutdown(connection.socket.fd(), SHUT_RDWR);
    connections.swap(connections_);
  }
  for (Connection& connection : connections) connection.thread.join();
}

int64_t OuterServer::round() const {
  absl::MutexLock lock(&mutex_);
  return copy_.has_value() && copy_->run != 0 ? copy_->round : -1;
}

std::vector<float> OuterServer::global() const {
  absl::MutexLock lock(&mutex_);
  return copy_.has_value() ? copy_->global() : std::vector<float>();
}

void OuterServer::Accept() {
  while (true) {
    std::vector<pollfd> entries = {{wake_.fd(), POLLIN, 0}};
    acceptor_.AppendTo(&entries);
    const absl::Duration wait = std::min(kTick, acceptor_.longest_wait());
    poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    if (entries[0].revents != 0) return;
    for (AcceptedChannel& channel : acceptor_.Accept()) Open(std::move(channel));
    JoinFinished();
    std::optional<SecureRound::Sum> sum;
    {
      absl::MutexLock lock(&mutex_);
      EndRound();
      if (secure_.has_value() && secure_->step() == SumStep::kUnmasking && !unmasks_) {
        unmasks_ = true;
        sum = secure_->Take();
      }
    }
    if (sum.has_value()) Unmask(*std::move(sum));
  }
}

void OuterServer::Open(AcceptedChannel channel) {
  std::string peer = PeerText(channel.socket);
  if (channel.id.purpose != ChannelPurpose::kIslands ||
      channel.id.version != kIslandProtocolVersion) {
    LOG(WARNING) << "connection from " << peer << " refused: it speaks another protocol (purpose "
                 << static_cast<uint32_t>(channel.id.purpose) << ", version " << channel.id.version
                 << ")";
    return;
  }
  KeepAlive(channel.socket, options_.silence_limit);
  absl::MutexLock lock(&mutex_);
  if (static_cast<int>(connections_.size()) >= options_.max_connections) {
    LOG(WARNING) << "connection from " << peer << " refused: there are " << options_.max_connections
                 << " already";
    return;
  }
  connections_.emplace_back(std::move(channel.socket), std::move(peer));
  Connection* const connection = &connections_.back();
  connection->thread = std::thread([this, connection] { Serve(connection); });
}

void OuterServer::JoinFinished() {
  std::list<Connection> finished;
  {
    absl::MutexLock lock(&mutex_);
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      const auto current = connection++;
      if (current->done) finished.splice(finished.end(), connections_, current);
    }
  }
  for (Connection& connection : finished) connection.thread.join();
}

absl::StatusOr<IslandMessage> OuterServer::Receive(const Connection& connection) {
  std::string length(kIslandLengthBytes, '\0');
  // An island is silent while it trains.
  MEGATRON_RETURN_IF_ERROR(
      ReceiveAll(connection.socket, &length[0], length.size(), absl::InfiniteFuture()));
  MEGATRON_ASSIGN_OR_RETURN(const size_t bytes, IslandMessageLength(length));
  std::string body(bytes, '\0');
  MEGATRON_RETURN_IF_ERROR(
      ReceiveAll(connection.socket, &body[0], body.size(), SteadyNow() + options_.message_time));
  absl::MutexLock lock(&mutex_);
  received_ += static_cast<int64_t>(length.size() + body.size());
  return DecodeIslandMessage(body);
}

void OuterServer::Serve(Connection* connection) {
  const char* how = "its connection has ended";
  while (true) {
    const absl::StatusOr<IslandMessage> message = Receive(*connection);
    if (absl::IsUnavailable(message.status())) break;
    const absl::StatusOr<std::optional<IslandMessage>> answer =
        message.ok() ? Handle(connection, *message)
                     : absl::StatusOr<std::optional<IslandMessage>>(message.status());
    if (!answer.ok()) {
      how = "it was refused";
      LOG(WARNING) << (connection->island < 0 ? ""
                                              : absl::StrCat("island ", connection->island, " "))
                   << "at " << connection->peer << " refused: " << answer.status().message();
    }
    std::string bytes;
    if (!answer.ok()) {
      bytes = EncodeIslandMessage(Answer(answer.status()));
    } else if (answer->has_value()) {
      bytes = EncodeIslandMessage(**answer);
    }
    const absl::Status sent =
        SendAll(connection->socket, bytes, SteadyNow() + options_.message_time);
    {
      absl::MutexLock lock(&mutex_);
      sent_ += static_cast<int64_t>(bytes.size());
    }
    if (!answer.ok()) Drain(connection->socket);
    if (!answer.ok() || !sent.ok()) break;
    if (message->kind == IslandMessageKind::kLeave) how = "it has left";
  }
  shutdown(connection->socket.fd(), SHUT_RDWR);
  absl::MutexLock lock(&mutex_);
  Leave(connection, how);
  EndRound();
  connection->done = true;
}

void OuterServer::Leave(Connection* connection, const char* how) {
  if (!connection->leads) return;
  Island& island = islands_[connection->island];
  if (island.leader != connection) return;
  island.leader = nullptr;
  if (giver_ == connection->island) giver_ = -1;
  if (!island.sent) island.values = {};
  island.masked = {};
  if (options_.federated.enabled()) {
    LoseMember(connection->island);
    island.sent = false;
  }
  if (stop_ || !island.joined) return;
  island.joined = false;
  LOG(INFO) << "island " << connection->island << " at " << connection->peer << " is out: " << how;
}

IslandMessage OuterServer::State(int island, SumStep known) {
  IslandMessage state;
  state.kind = IslandMessageKind::kState;
  if (copy_.has_value() && copy_->run != 0) {
    state.run = copy_->run;
    state.round = copy_->round;
    state.present = present_;
    state.note = note_;
    state.noised_rounds = copy_->noised_rounds;
    state.budget_spent = budget_spent_;
    if (secure_.has_value() && secure_->StepOf(island) > known) secure_->Tell(island, &state);
  } else {
    if (giver_ < 0) giver_ = island;
    state.copy = giver_ == island ? CopyState::kGive : CopyState::kWait;
  }
  return state;
}

absl::StatusOr<IslandMessage> OuterServer::Join(Connection* connection,
                                                const IslandMessage& message) {
  const int number = message.island;
  if (number < 0 || number >= kMostIslands) {
    return absl::InvalidArgumentError(
        absl::StrCat("island ", number, "; their numbers are 0 to ", kMostIslands - 1));
  }
  if (connection->island >= 0 &&
      (connection->island != number || connection->session != message.session ||
       connection->leads != message.leads))
    return absl::InvalidArgumentError("it was another on this connection before");
  const bool given = copy_.has_value() && copy_->run != 0;
  // What was agreed on for a copy that was never given binds nobody.
  if (!given && giver_ < 0 && message.leads) {
    MEGATRON_ASSIGN_OR_RETURN(copy_,
                              GlobalCopy::Create(message.agreement, options_.max_parameters));
  }
  const auto found = islands_.find(number);
  const bool known = found != islands_.end() && found->second.leader != nullptr;
  const bool same = known && found->second.session == message.session;
  if (!message.leads && !same)
    return absl::UnavailableError("the island's first rank has not joined yet");
  CHECK(copy_.has_value());
  MEGATRON_RETURN_IF_ERROR(CheckAgreement(message));
  if (known && !same) {
    return absl::AlreadyExistsError(absl::StrCat("island ", number, " has joined already, from ",
                                                 found->second.leader->peer,
                                                 "; each needs a number of its own"));
  }
  connection->island = number;
  connection->session = message.session;
  connection->leads = message.leads;
  // Joining tells nothing of a sum: each kAdvertise begins one anew.
  if (!message.leads) return State(number, SumStep::kUnmasking);
  Island& island = islands_[number];
  if (!island.joined) {
    LOG(INFO) << "island " << number << " at " << connection->peer << " has joined"
              << (message.run == 0 ? "" : absl::StrCat(" with the copy of round ", message.round));
    bool others_have_sent = false;
    for (const auto& [other, state] : islands_)
      others_have_sent = others_have_sent || (other != number && state.sent);
    island.awaited = !others_have_sent;
  }
  island.session = message.session;
  island.leader = connection;
  island.joined = true;
  const IslandMessage state = State(number, SumStep::kUnmasking);
  if (given && (message.run != copy_->run || message.round != copy_->round)) {
    island.state = IslandState::kFetches;
    island.fetches_since = SteadyNow();
  } else if (!same) {
    island.state = IslandState::kTrains;
  }
  return state;
}

absl::StatusOr<std::optional<IslandMessage>> OuterServer::Handle(Connection* connection,
                                                                 const IslandMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (stop_) return absl::UnavailableError("the server ends");
  if (hidden_ && message.kind != IslandMessageKind::kPut) {
    return Answer(absl::UnavailableError(
        "the server could not save its state, and shows the round's copy only when it has"));
  }
  if (message.kind == IslandMessageKind::kJoin) {
    // An error of blocks that were put before is no error of those that come now.
    connection->put_error = absl::OkStatus();
    absl::StatusOr<IslandMessage> state = Join(connection, message);
    // An island that comes too early, or twice, may ask again.
    if (absl::IsUnavailable(state.status()) || absl::IsAlreadyExists(state.status()))
      return Answer(state.status());
    if (!state.ok()) {
      const std::string who = absl::StrCat("island ", message.island, ": ");
      return absl::Status(state.status().code(), who + std::string(state.status().message()));
    }
    return *std::move(state);
  }
  if (connection->island < 0) return absl::InvalidArgumentError("it has not joined");
  Island& island = islands_[connection->island];
  if (island.leader == nullptr || island.session != connection->session) {
    const absl::Status out = absl::UnavailableError("the island is out and has to join again");
    if (message.kind != IslandMessageKind::kPut) return Answer(out);
    connection->put_error.Update(out);
    return std::nullopt;
  }
  const auto only_first = [&]() -> absl::Status {
    if (connection->leads) return absl::OkStatus();
    return absl::InvalidArgumentError("this is for the island's first rank");
  };
  // What no honest island sends ends its connection.
  const auto answer =
      [](const absl::Status& status) -> absl::StatusOr<std::optional<IslandMessage>> {
    if (absl::IsInvalidArgument(status)) return status;
    return Answer(status);
  };
  switch (message.kind) {
    case IslandMessageKind::kBegin:
      MEGATRON_RETURN_IF_ERROR(only_first());
      if (message.content == IslandContent::kCopy && giver_ != connection->island)
        return Answer(absl::UnavailableError("another island gives the copy"));
      if (!island.joined) return Answer(RoundIsOver(copy_->round));
      return answer(Begin(connection->island, &island, message));
    case IslandMessageKind::kPut: {
      if (!connection->put_error.ok()) return std::nullopt;
      connection->put_error = Put(&island, message);
      // Wrong bytes are no matter of time.
      if (absl::IsInvalidArgument(connection->put_error)) return connection->put_error;
      return std::nullopt;
    }
    case IslandMessageKind::kFlush:
      return Answer(std::exchange(connection->put_error, absl::OkStatus()));
    case IslandMessageKind::kFinish:
      MEGATRON_RETURN_IF_ERROR(only_first());
      return answer(Finish(connection->island, &island, message));
    case IslandMessageKind::kAdvertise:
    case IslandMessageKind::kShare:
    case IslandMessageKind::kReveal:
    case IslandMessageKind::kAbstain:
      MEGATRON_RETURN_IF_ERROR(only_first());
      return answer(TakePart(connection->island, &island, message));
    case IslandMessageKind::kPoll: {
      const int64_t round = message.round;
      const int number = connection->island;
      const SumStep known = message.step;
      const auto over = [this, round, number, known]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stop_ || (copy_->run != 0 && copy_->round != round && !hidden_) ||
               (secure_.has_value() && secure_->StepOf(number) > known);
      };
      mutex_.AwaitWithTimeout(absl::Condition(&over),
                              std::min(absl::Milliseconds(message.wait_ms), kLongestPoll));
      if (hidden_) return Answer(absl::UnavailableError("the server saves its state"));
      return State(number, known);
    }
    case IslandMessageKind::kGet: {
      IslandMessage values;
      values.kind = IslandMessageKind::kValues;
      if (copy_->run == 0 || message.round != copy_->round) {
        values.status = RoundIsOver(copy_->round);
      } else {
        MEGATRON_RETURN_IF_ERROR(copy_->Gather(message.block, &values.values));
      }
      return values;
    }
    case IslandMessageKind::kFetched:
      MEGATRON_RETURN_IF_ERROR(only_first());
      if (message.round != copy_->round) return Answer(RoundIsOver(copy_->round));
      if (island.state == IslandState::kFetches) island.state = IslandState::kTrains;
      EndRound();
      return Answer(absl::OkStatus());
    case IslandMessageKind::kLeave:
      return Answer(absl::OkStatus());
    default:
      return absl::InvalidArgumentError("a message that only a server sends");
  }
}

}  // namespace megatron
