// Proves to each of two processes that the other belongs to the same job, before anything else is
// read from their connection.
//
// Both know the job's secret S. After TCP's own handshake
//
//   acceptor -> connector   "MGTN" version(4)  a(32)                       a, b: random
//   connector -> acceptor   id(24)  b(32)  HMAC(S, "connector" a b id)(32)
//   acceptor -> connector   HMAC(S, "acceptor" a b id)(32), or 32 zeros and the end
//
// where id says what the connection is for, and between whom. Each message has a fixed length; the
// acceptor reads one message, and looks into it only after the code has been found right. Fresh
// random bytes on both sides make recorded handshakes worthless, and the two labels keep one side's
// answer from being used as the other's. What follows on the connection is neither encrypted nor
// signed: whoever can change packets between the machines is not kept out.
#ifndef MEGATRON_COMM_SOCKET_HANDSHAKE_H_
#define MEGATRON_COMM_SOCKET_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

// kIslands: of jobs that share a secret, between an island and the server of the outer optimizer.
enum class ChannelPurpose : uint32_t { kStore = 1, kData = 2, kControl = 3, kIslands = 4 };

struct ChannelId {
  ChannelPurpose purpose = ChannelPurpose::kStore;
  uint32_t version = 1;  // version of the protocol on the channel
  int32_t from = 0;      // ranks, for data and control
  int32_t to = 0;
  uint64_t world = 0;  // tells the worlds of one job apart
};

// The connector's side. kUnauthenticated if either side does not know the secret.
absl::Status ProveAsConnector(const Socket& socket, const JobSecret& secret, const ChannelId& id,
                              absl::Time deadline);

// Connects, and proves, to a process that may not listen yet: tries again until the deadline,
// unless what answers is of another job. kResourceExhausted: no descriptor was free until then.
absl::StatusOr<Socket> ConnectToJob(const Endpoint& to, const JobSecret& secret,
                                    const ChannelId& id, absl::Time deadline);

// The acceptor's side, which never waits.
class AcceptorHandshake {
 public:
  // Sends the greeting.
  AcceptorHandshake(Socket socket, const JobSecret& secret);

  enum class Progress { kPending, kAccepted, kRefused };
  // Reads what has come.
  Progress Advance();
  // The reason of the refusal: "wrong secret".
  const char* refusal() const { return refusal_; }

  const Socket& socket() const { return socket_; }
  absl::Time started() const { return started_; }
  // Returns what the other side said of the channel, once it is accepted.
  const ChannelId& id() const { return id_; }
  Socket Take() { return std::move(socket_); }

 private:
  Progress Refuse(const char* why);
  Progress Judge();

  Socket socket_;
  JobSecret secret_;
  absl::Time started_;
  std::string challenge_;
  std::string answer_;  // the bytes of the message read so far
  ChannelId id_;
  const char* refusal_ = "";
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_HANDSHAKE_H_
