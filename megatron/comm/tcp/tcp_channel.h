// One connection that carries frames. It cuts what arrives into frames, and queues what cannot be
// sent at once. It never waits.
//
// Threads: callers hold a lock.
#ifndef MEGATRON_COMM_TCP_TCP_CHANNEL_H_
#define MEGATRON_COMM_TCP_TCP_CHANNEL_H_

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/tcp/tcp_frame.h"

namespace megatron {

// The parts of tensors that are in transit in one operation, in either direction.
struct TcpOperation {
  int pending = 0;
};

// A frame to send: a header with a message, or with memory of a caller.
struct TcpOutFrame {
  std::array<char, kFrameHeaderBytes> header;
  std::string message;
  const char* data = nullptr;  // instead of a message
  size_t data_bytes = 0;
  TcpOperation* operation = nullptr;  // told when all has been sent
};

class TcpChannel {
 public:
  explicit TcpChannel(Socket socket) : socket_(std::move(socket)) {}

  const Socket& socket() const { return socket_; }
  // Returns whether the other side has not ended the connection yet.
  bool open() const { return open_; }

  void Close() {
    open_ = false;
    socket_.Close();
  }

  void Queue(TcpOutFrame frame) { out_.push_back(std::move(frame)); }
  // Sends what the socket takes. A broken connection drops everything: reading tells why it broke.
  void Flush();
  bool has_queued() const { return !out_.empty(); }
  bool QueuesFor(const TcpOperation* operation) const;
  // Drops the queued frames without sending them.
  void DropQueued() { out_.clear(); }
  // Returns whether all that was sent has reached the other side's machine, or never will.
  bool AllAcknowledged() const;
  // Returns whether, besides, all that has arrived has been read.
  bool Idle() const;

  // The place of a frame's bytes: memory of a caller, or, if null, a message.
  struct Target {
    char* data = nullptr;
  };
  struct Handler {
    absl::FunctionRef<absl::StatusOr<Target>(const FrameHeader&)> begin;
    absl::FunctionRef<absl::Status(const FrameHeader&, std::string message)> finish;
  };
  // Reads a bounded amount of what has arrived and gives it to the handler. `*any` says whether
  // there was anything. An error is one of the handler, or of an invalid frame.
  absl::Status Read(const Handler& handler, bool* any);

 private:
  absl::Status Consume(const Handler& handler);
  absl::Status FinishFrame(const Handler& handler);
  ssize_t Receive(char* to, size_t size);

  Socket socket_;
  bool open_ = true;

  std::deque<TcpOutFrame> out_;
  size_t sent_ = 0;  // bytes of the first frame, header included

  // The bytes that were received and not yet used: [begin_, end_) of buffer_.
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  // The frame that is being received, while in_frame_.
  bool in_frame_ = false;
  FrameHeader header_;
  Target target_;
  std::string message_;
  uint64_t received_ = 0;  // bytes of the frame so far
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_CHANNEL_H_
