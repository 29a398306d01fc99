#include "megatron/islands/outer_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/hmac_sha256.h"

namespace megatron {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kLongestPoll = absl::Seconds(5);
constexpr absl::Duration kDrainTime = absl::Seconds(1);

uint64_t RandomNumber() {
  uint64_t number = 0;
  const std::string bytes = RandomBytes(sizeof(number));
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number | 1;  // 0 is no run
}

absl::Status RoundIsOver(int64_t round) {
  return absl::OutOfRangeError(absl::StrCat("this is round ", round));
}

IslandMessage Answer(const absl::Status& status) {
  IslandMessage answer;
  answer.kind = IslandMessageKind::kAnswer;
  answer.status = status;
  return answer;
}

// Returns the first line in which two texts differ, for a message.
std::string FirstDifference(const std::string& ours, const std::string& theirs) {
  const std::vector<absl::string_view> a = absl::StrSplit(ours, '\n'),
                                       b = absl::StrSplit(theirs, '\n');
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const absl::string_view mine = i < a.size() ? a[i] : "", other = i < b.size() ? b[i] : "";
    if (mine != other)
      return absl::StrCat("the copy is of ", Quoted(mine), ", and the island has ", Quoted(other));
  }
  return "";
}

// A host that has gone without a word is noticed within about half a minute.
void KeepAlive(const Socket& socket) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket.fd(), level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Reads for a moment what is still coming, so that closing does not take back the last answer.
void Drain(const Socket& socket) {
  shutdown(socket.fd(), SHUT_WR);
  const absl::Time deadline = absl::Now() + kDrainTime;
  std::string bytes(1 << 16, '\0');
  while (ReceiveAll(socket, &bytes[0], bytes.size(), deadline).ok()) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<OuterServer>> OuterServer::Start(const OuterServerOptions& options,
                                                                const JobSecret& secret,
                                                                FileSystem& fs,
                                                                std::unique_ptr<UpdateSum> sum) {
  std::optional<GlobalCopy> copy;
  if (!options.state_file.empty()) {
    absl::StatusOr<GlobalCopy> loaded =
        GlobalCopy::Load(fs, options.state_file, options.max_parameters);
    if (loaded.ok()) {
      copy = *std::move(loaded);
    } else if (!absl::IsNotFound(loaded.status())) {
      return loaded.status();
    }
  }
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp(options.listen));
  MEGATRON_ASSIGN_OR_RETURN(Endpoint endpoint, LocalEndpoint(listener));
  if (sum == nullptr) sum = std::make_unique<MeanOfUpdates>();
  std::unique_ptr<OuterServer> server(new OuterServer(options, secret, fs, std::move(sum),
                                                      std::move(listener), std::move(endpoint)));
  {
    absl::MutexLock lock(&server->mutex_);
    server->copy_ = std::move(copy);
    if (server->copy_.has_value()) {
      LOG(INFO) << "the copy is of round " << server->copy_->round << ", from "
                << options.state_file;
    }
  }
  server->thread_ = std::thread([raw = server.get()] { raw->Accept(); });
  return server;
}

OuterServer::OuterServer(const OuterServerOptions& options, const JobSecret& secret, FileSystem& fs,
                         std::unique_ptr<UpdateSum> sum, Socket listener, Endpoint endpoint)
    : options_(options),
      fs_(fs),
      endpoint_(std::move(endpoint)),
      acceptor_(std::move(listener), secret),
      sum_(std::move(sum)) {}

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
    absl::MutexLock lock(&mutex_);
    EndRound();
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
  KeepAlive(channel.socket);
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
      ReceiveAll(connection.socket, &body[0], body.size(), absl::Now() + options_.message_time));
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
        SendAll(connection->socket, bytes, absl::Now() + options_.message_time);
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
  if (stop_ || !island.joined) return;
  island.joined = false;
  LOG(INFO) << "island " << connection->island << " at " << connection->peer << " is out: " << how;
}

absl::Status OuterServer::CheckAgreement(const IslandMessage& message) const {
  const IslandAgreement& ours = copy_->agreement();
  const IslandAgreement& theirs = message.agreement;
  if (ours.text != theirs.text)
    return absl::FailedPreconditionError(FirstDifference(ours.text, theirs.text));
  if (ours.outer.lr != theirs.outer.lr || ours.outer.momentum != theirs.outer.momentum ||
      ours.outer.nesterov != theirs.outer.nesterov) {
    return absl::FailedPreconditionError(
        absl::StrCat("the copy has an outer learning rate of ", ours.outer.lr,
                     " and a momentum of ", ours.outer.momentum,
                     ours.outer.nesterov ? " (Nesterov)" : "", ", and the island ", theirs.outer.lr,
                     " and ", theirs.outer.momentum, theirs.outer.nesterov ? " (Nesterov)" : ""));
  }
  if (!message.leads) return absl::OkStatus();
  const size_t count = std::min(ours.tensors.size(), theirs.tensors.size());
  for (size_t i = 0; i < count; ++i) {
    const NamedShape &a = ours.tensors[i], &b = theirs.tensors[i];
    if (a == b) continue;
    std::ostringstream text;
    text << "the copy has " << Quoted(a.name) << " " << a.shape << ", and the island "
         << Quoted(b.name) << " " << b.shape;
    return absl::FailedPreconditionError(text.str());
  }
  if (ours.tensors.size() == theirs.tensors.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the copy has ", ours.tensors.size(), " parameters, and the island ", theirs.tensors.size()));
}

IslandMessage OuterServer::State(int island) {
  IslandMessage state;
  state.kind = IslandMessageKind::kState;
  if (copy_.has_value() && copy_->run != 0) {
    state.run = copy_->run;
    state.round = copy_->round;
    state.present = present_;
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
  if (!message.leads) return State(number);
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
  const IslandMessage state = State(number);
  if (given && (message.run != copy_->run || message.round != copy_->round)) {
    island.state = IslandState::kFetches;
    island.fetches_since = absl::Now();
  } else if (!same) {
    island.state = IslandState::kTrains;
  }
  return state;
}

absl::Status OuterServer::Begin(Island* island, const IslandMessage& message) {
  const bool given = copy_->run != 0;
  if (message.content == IslandContent::kCopy) {
    if (given) return RoundIsOver(copy_->round);
  } else {
    if (!given || message.run != copy_->run || message.round != copy_->round)
      return RoundIsOver(copy_->round);
  }
  island->attempt = message.attempt;
  island->content = message.content;
  island->values.assign(copy_->elements(), 0.0f);
  island->elements = 0;
  island->sent = false;
  island->state = IslandState::kTrains;
  return absl::OkStatus();
}

absl::Status OuterServer::Put(Island* island, const IslandMessage& message) {
  if (message.attempt != island->attempt || message.content != island->content ||
      island->values.empty() || island->sent)
    return RoundIsOver(copy_->round);
  const int64_t count = message.block.place.extent.numel();
  if (island->elements + count > copy_->elements())
    return absl::InvalidArgumentError("more elements than the model has");
  std::vector<float> values(count);
  if (message.type == OuterGradientType::kFloat32) {
    std::memcpy(values.data(), message.values.data(), message.values.size());
  } else {
    std::string codes = message.values;
    DecodeOuter(Stream::Inline(), message.type,
                Tensor(&codes[0], DType::kUInt8, {static_cast<int64_t>(codes.size())}),
                Tensor(values.data(), DType::kFloat32, {count}));
  }
  MEGATRON_RETURN_IF_ERROR(copy_->Scatter(message.block, values.data(), &island->values));
  island->elements += count;
  return absl::OkStatus();
}

absl::Status OuterServer::Finish(int number, Island* island, const IslandMessage& message) {
  const bool copy = message.content == IslandContent::kCopy;
  if (message.attempt != island->attempt || message.content != island->content ||
      island->values.empty() || island->sent || (copy ? copy_->run != 0 : copy_->run == 0))
    return RoundIsOver(copy_->round);
  if (island->elements != copy_->elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has sent ", island->elements, " of ", copy_->elements(), " elements"));
  }
  if (copy) {
    if (!AllFinite(island->values))
      return absl::InvalidArgumentError("the first global copy has an infinity or a NaN");
    copy_->global() = std::exchange(island->values, {});
    std::fill(copy_->momentum().begin(), copy_->momentum().end(), 0.0f);
    copy_->run = RandomNumber();
    copy_->round = std::max<int64_t>(message.round, 0);
    present_.clear();
    LOG(INFO) << "island " << number << " has given the global copy of "
              << FormatQuantity(copy_->elements(), "parameter") << ", at round " << copy_->round;
    Save();
    return absl::OkStatus();
  }
  const absl::Status fits = sum_->Check({number, island->values});
  if (!fits.ok()) {
    LOG(WARNING) << "island " << number << " is left out of round " << copy_->round << ": "
                 << fits.message();
    island->values = {};
    island->awaited = false;
    island->state = IslandState::kFetches;
    island->fetches_since = absl::Now();
    return absl::DataLossError(fits.message());
  }
  island->sent = true;
  if (deadline_ == absl::InfiniteFuture()) deadline_ = absl::Now() + options_.round_timeout;
  EndRound();
  return absl::OkStatus();
}

void OuterServer::EndRound() {
  if (stop_ || !copy_.has_value() || copy_->run == 0) return;
  const absl::Time now = absl::Now();
  std::vector<int> sent;
  bool all = true, all_have_fetched = true;
  for (auto& [number, island] : islands_) {
    if (island.joined && island.state == IslandState::kFetches) {
      // Who still reads the copy may not find another.
      if (now < island.fetches_since + options_.round_timeout) {
        all_have_fetched = false;
      } else {
        LOG(WARNING) << "island " << number << " is out: it has not fetched the copy in "
                     << options_.round_timeout;
        island.joined = false;
      }
    }
    if (island.sent) {
      sent.push_back(number);
    } else if (island.joined && island.awaited) {
      all = false;
    }
  }
  if (sent.empty()) return;
  const bool late = now >= deadline_;
  if (static_cast<int>(sent.size()) < options_.min_islands) {
    if (late && !std::exchange(told_too_few_, true)) {
      LOG(WARNING) << "round " << copy_->round << " waits for more islands: "
                   << FormatQuantity(static_cast<int64_t>(sent.size()), "island")
                   << " sent in time, and it takes " << options_.min_islands;
    }
    return;
  }
  if (all_have_fetched && (all || late)) TakeStep(sent);
}

void OuterServer::TakeStep(const std::vector<int>& islands) {
  std::vector<IslandUpdate> updates;
  for (const int number : islands) updates.push_back({number, islands_[number].values});
  std::vector<float> gradient(copy_->elements());
  const absl::Status summed = sum_->Sum(updates, absl::MakeSpan(gradient));
  present_.clear();
  if (summed.ok()) {
    copy_->Step(gradient);
    present_.assign(islands.begin(), islands.end());
  } else {
    ++copy_->round;
    LOG(ERROR) << "round " << copy_->round << " has no outer step: " << summed.message();
  }
  std::vector<int> missed;
  for (auto& [number, island] : islands_) {
    if (island.sent) {
      island.state = IslandState::kFetches;
      island.fetches_since = absl::Now();
    } else if (island.joined && island.awaited) {
      island.joined = false;
      missed.push_back(number);
    }
    // An island that joined late is waited for from now on.
    island.awaited = true;
    island.sent = false;
    island.values = {};
  }
  LOG(INFO) << "round " << copy_->round << ": islands " << absl::StrJoin(islands, ", ")
            << (missed.empty() ? "" : absl::StrCat("; too late: ", absl::StrJoin(missed, ", ")))
            << "; " << FormatBytes(received_) << " received, " << FormatBytes(sent_)
            << " sent since the round before";
  received_ = sent_ = 0;
  deadline_ = absl::InfiniteFuture();
  told_too_few_ = false;
  Save();
}

void OuterServer::Save() {
  if (options_.state_file.empty()) return;
  const absl::Status saved = copy_->Save(fs_, options_.state_file);
  if (saved.ok()) return;
  LOG(ERROR) << "the state of round " << copy_->round << " was not saved: " << saved.message()
             << "; rounds go on, and a server that is started again goes back to the last one that "
                "was saved";
}

absl::StatusOr<std::optional<IslandMessage>> OuterServer::Handle(Connection* connection,
                                                                 const IslandMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (stop_) return absl::UnavailableError("the server ends");
  if (message.kind == IslandMessageKind::kJoin) {
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
  if (island.leader == nullptr || island.session != connection->session)
    return Answer(absl::UnavailableError("the island is out and has to join again"));
  const auto only_first = [&]() -> absl::Status {
    if (connection->leads) return absl::OkStatus();
    return absl::InvalidArgumentError("this is for the island's first rank");
  };
  switch (message.kind) {
    case IslandMessageKind::kBegin:
      MEGATRON_RETURN_IF_ERROR(only_first());
      if (message.content == IslandContent::kCopy && giver_ != connection->island)
        return Answer(absl::UnavailableError("another island gives the copy"));
      if (!island.joined) return Answer(RoundIsOver(copy_->round));
      return Answer(Begin(&island, message));
    case IslandMessageKind::kPut: {
      if (!connection->put_error.ok()) return std::nullopt;
      connection->put_error = Put(&island, message);
      // Wrong bytes are no matter of time.
      if (absl::IsInvalidArgument(connection->put_error)) return connection->put_error;
      return std::nullopt;
    }
    case IslandMessageKind::kFlush:
      return Answer(std::exchange(connection->put_error, absl::OkStatus()));
    case IslandMessageKind::kFinish: {
      MEGATRON_RETURN_IF_ERROR(only_first());
      const absl::Status status = Finish(connection->island, &island, message);
      if (absl::IsInvalidArgument(status)) return status;
      return Answer(status);
    }
    case IslandMessageKind::kPoll: {
      const int64_t round = message.round;
      const auto over = [this, round]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stop_ || (copy_->run != 0 && copy_->round != round);
      };
      mutex_.AwaitWithTimeout(absl::Condition(&over),
                              std::min(absl::Milliseconds(message.wait_ms), kLongestPoll));
      return State(connection->island);
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
