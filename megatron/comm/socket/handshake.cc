#include "megatron/comm/socket/handshake.h"

#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

constexpr absl::string_view kGreeting("MGTN\1\0\0\0", 8);
constexpr absl::Duration kRetryPause = absl::Milliseconds(20);
constexpr size_t kNonceBytes = 32;
constexpr size_t kIdBytes = 24;
constexpr size_t kAnswerBytes = kIdBytes + kNonceBytes + kSha256Bytes;

std::string Encode(const ChannelId& id) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(id.purpose));
  writer.Put(id.version);
  writer.Put(id.from);
  writer.Put(id.to);
  writer.Put(id.world);
  return writer.Take();
}

ChannelId DecodeId(absl::string_view bytes) {
  WireReader reader(bytes);
  ChannelId id;
  id.purpose = static_cast<ChannelPurpose>(reader.Get<uint32_t>());
  id.version = reader.Get<uint32_t>();
  id.from = reader.Get<int32_t>();
  id.to = reader.Get<int32_t>();
  id.world = reader.Get<uint64_t>();
  return id;
}

struct Transcript {
  absl::string_view acceptor_nonce, connector_nonce, id;
};

Sha256Digest Proof(const JobSecret& secret, absl::string_view label, const Transcript& transcript) {
  return HmacSha256(secret.bytes(),
                    absl::StrCat(label, absl::string_view("\0", 1), transcript.acceptor_nonce,
                                 transcript.connector_nonce, transcript.id));
}

std::string AsText(const Sha256Digest& digest) { return std::string(AsBytes(digest)); }

}  // namespace

absl::Status ProveAsConnector(const Socket& socket, const JobSecret& secret, const ChannelId& id,
                              absl::Time deadline) {
  std::string greeting(kGreeting.size() + kNonceBytes, '\0');
  MEGATRON_RETURN_IF_ERROR(ReceiveAll(socket, &greeting[0], greeting.size(), deadline),
                           _ << "while waiting for the greeting");
  if (greeting.compare(0, kGreeting.size(), kGreeting.data(), kGreeting.size()) != 0) {
    return absl::UnauthenticatedError("what answers there is no process of this program");
  }
  const std::string nonce = RandomBytes(kNonceBytes), encoded = Encode(id);
  const Transcript transcript = {absl::string_view(greeting).substr(kGreeting.size()), nonce,
                                 encoded};
  const Sha256Digest proof = Proof(secret, "connector", transcript);
  MEGATRON_RETURN_IF_ERROR(SendAll(socket, absl::StrCat(encoded, nonce, AsBytes(proof)), deadline));
  std::string answer(kSha256Bytes, '\0');
  MEGATRON_RETURN_IF_ERROR(ReceiveAll(socket, &answer[0], answer.size(), deadline),
                           _ << "while waiting for the other side's proof");
  if (EqualInConstantTime(answer, AsBytes(Proof(secret, "acceptor", transcript)))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError("what answers there has another secret: it is of another job");
}

absl::StatusOr<Socket> ConnectToJob(const Endpoint& to, const JobSecret& secret,
                                    const ChannelId& id, absl::Time deadline) {
  while (true) {
    absl::StatusOr<Socket> socket = ConnectTcp(to, deadline);
    absl::Status status = socket.status();
    if (status.ok()) {
      status = ProveAsConnector(*socket, secret, id, deadline);
      if (status.ok()) return socket;
      status = StatusBuilder(status).SetPrepend() << to.ToString() << ": ";
    }
    const bool may_come = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
    if (!may_come || SteadyNow() >= deadline) return status;
    absl::SleepFor(kRetryPause);
  }
}

AcceptorHandshake::AcceptorHandshake(Socket socket, const JobSecret& secret)
    : socket_(std::move(socket)),
      secret_(secret),
      started_(SteadyNow()),
      challenge_(RandomBytes(kNonceBytes)) {
  // The message fits the empty buffer of a new connection. If sending fails the connection has
  // gone, which Advance will see.
  const std::string greeting = absl::StrCat(kGreeting, challenge_);
  (void)!send(socket_.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
}

AcceptorHandshake::Progress AcceptorHandshake::Refuse(const char* why) {
  refusal_ = why;
  return Progress::kRefused;
}

AcceptorHandshake::Progress AcceptorHandshake::Advance() {
  while (answer_.size() < kAnswerBytes) {
    char bytes[kAnswerBytes];
    const ssize_t got = recv(socket_.fd(), bytes, kAnswerBytes - answer_.size(), 0);
    if (got > 0) {
      answer_.append(bytes, got);
    } else if (got == 0) {
      return Refuse("closed before its proof");
    } else if (errno == EAGAIN) {
      return Progress::kPending;
    } else if (errno != EINTR) {
      return Refuse("broken before its proof");
    }
  }
  return Judge();
}

AcceptorHandshake::Progress AcceptorHandshake::Judge() {
  const absl::string_view answer = answer_;
  const Transcript transcript = {challenge_, answer.substr(kIdBytes, kNonceBytes),
                                 answer.substr(0, kIdBytes)};
  const bool right = EqualInConstantTime(answer.substr(kIdBytes + kNonceBytes),
                                         AsBytes(Proof(secret_, "connector", transcript)));
  std::string reply(kSha256Bytes, '\0');
  if (right) reply = AsText(Proof(secret_, "acceptor", transcript));
  if (send(socket_.fd(), reply.data(), reply.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(reply.size())) {
    return Refuse("closed before our proof");
  }
  if (!right) return Refuse("wrong secret");
  id_ = DecodeId(transcript.id);
  return Progress::kAccepted;
}

}  // namespace megatron
