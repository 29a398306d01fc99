// A rank's connection to the server of the outer optimizer (outer_server.h).
//
// An error of the connection is kUnavailable, and closes it. An answer may be an error, too:
// kOutOfRange: the round is another; kUnavailable and kAlreadyExists: to be asked again later;
// kDataLoss: the update is left out. All others are refusals for good.
//
// Threads: one.
#ifndef MEGATRON_ISLANDS_ISLAND_CLIENT_H_
#define MEGATRON_ISLANDS_ISLAND_CLIENT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/islands/island_protocol.h"

namespace megatron {

class IslandClient {
 public:
  IslandClient(Endpoint server, JobSecret secret);

  bool connected() const { return socket_.valid(); }
  // One attempt. kUnauthenticated where the secret is another.
  absl::Status Connect(absl::Duration time);
  void Close() { socket_.Close(); }

  // Sends a message that has no answer.
  absl::Status Send(const IslandMessage& message);
  // Receives the answer to what was sent.
  absl::StatusOr<IslandMessage> Receive();
  // Sends and receives; an error in the answer is the status.
  absl::StatusOr<IslandMessage> Ask(const IslandMessage& message);

  int64_t sent_bytes() const { return sent_; }
  int64_t received_bytes() const { return received_; }

 private:
  absl::Status Lost(const absl::Status& error);

  const Endpoint server_;
  const JobSecret secret_;
  Socket socket_;
  int64_t sent_ = 0, received_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_ISLAND_CLIENT_H_
