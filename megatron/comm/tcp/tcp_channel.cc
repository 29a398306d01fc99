#include "megatron/comm/tcp/tcp_channel.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace megatron {
namespace {

constexpr size_t kBufferBytes = 1 << 16;
// The size from which a frame's bytes are received in place.
constexpr size_t kDirectBytes = 1 << 14;
// The most bytes that one call reads, so that one peer does not keep the others waiting.
constexpr size_t kReadAtOnce = 1 << 21;

}  // namespace

bool TcpChannel::QueuesFor(const TcpOperation* operation) const {
  return std::any_of(out_.begin(), out_.end(),
                     [&](const TcpOutFrame& frame) { return frame.operation == operation; });
}

void TcpChannel::Flush() {
  while (!out_.empty() && open_) {
    TcpOutFrame& frame = out_.front();
    const bool is_message = frame.data == nullptr;
    const char* const body = is_message ? frame.message.data() : frame.data;
    const size_t body_bytes = is_message ? frame.message.size() : frame.data_bytes;
    const size_t header_sent = std::min(sent_, kFrameHeaderBytes);
    const size_t body_sent = sent_ - header_sent;
    iovec pieces[2] = {{frame.header.data() + header_sent, kFrameHeaderBytes - header_sent},
                       {const_cast<char*>(body) + body_sent, body_bytes - body_sent}};
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) DropQueued();
      return;
    }
    sent_ += sent;
    if (sent_ < kFrameHeaderBytes + body_bytes) continue;
    if (frame.operation != nullptr) --frame.operation->pending;
    out_.pop_front();
    sent_ = 0;
  }
}

bool TcpChannel::AllAcknowledged() const {
  if (!open_) return true;
  pollfd entry = {socket_.fd(), 0, 0};  // a reset connection never acknowledges
  if (poll(&entry, 1, 0) > 0 && (entry.revents & (POLLERR | POLLHUP)) != 0) return true;
  int unacknowledged = 0;
  return out_.empty() &&
         (ioctl(socket_.fd(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0);
}

bool TcpChannel::Idle() const {
  if (!open_) return true;
  pollfd entry = {socket_.fd(), POLLIN, 0};
  return AllAcknowledged() && poll(&entry, 1, 0) == 0;
}

ssize_t TcpChannel::Receive(char* to, size_t size) {
  while (true) {
    const ssize_t got = recv(socket_.fd(), to, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && errno != EAGAIN)) open_ = false;
    return std::max<ssize_t>(got, 0);
  }
}

absl::Status TcpChannel::Read(const Handler& handler, bool* any) {
  *any = false;
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  for (size_t total = 0; total < kReadAtOnce && open_;) {
    // Here the buffer is used up, except perhaps for a piece of a header.
    const uint64_t left = in_frame_ ? header_.bytes - received_ : 0;
    size_t got = 0;
    size_t asked = 0;
    if (left >= kDirectBytes) {
      char* const to = target_.data != nullptr ? target_.data : &message_[0];
      asked = std::min<uint64_t>(left, kReadAtOnce);
      got = Receive(to + received_, asked);
      received_ += got;
      if (received_ == header_.bytes) {
        if (absl::Status status = FinishFrame(handler); !status.ok()) return status;
      }
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      asked = kBufferBytes - end_;
      got = Receive(buffer_.data() + end_, asked);
      end_ += got;
      if (absl::Status status = Consume(handler); !status.ok()) return status;
    }
    *any |= got > 0;
    total += got;
    if (got < asked) break;  // nothing more, most likely; if there is, poll() will say so
  }
  return absl::OkStatus();
}

absl::Status TcpChannel::Consume(const Handler& handler) {
  while (true) {
    if (!in_frame_) {
      if (end_ - begin_ < kFrameHeaderBytes) return absl::OkStatus();
      absl::StatusOr<FrameHeader> header =
          DecodeFrameHeader({buffer_.data() + begin_, kFrameHeaderBytes});
      if (!header.ok()) return header.status();
      begin_ += kFrameHeaderBytes;
      header_ = *header;
      absl::StatusOr<Target> target = handler.begin(header_);
      if (!target.ok()) return target.status();
      target_ = *target;
      if (target_.data == nullptr) message_.resize(header_.bytes);
      received_ = 0;
      in_frame_ = true;
    }
    const size_t take = std::min<uint64_t>(end_ - begin_, header_.bytes - received_);
    if (take > 0) {
      char* const to = target_.data != nullptr ? target_.data : &message_[0];
      std::memcpy(to + received_, buffer_.data() + begin_, take);
      begin_ += take;
      received_ += take;
    }
    if (received_ < header_.bytes) return absl::OkStatus();
    if (absl::Status status = FinishFrame(handler); !status.ok()) return status;
  }
}

absl::Status TcpChannel::FinishFrame(const Handler& handler) {
  in_frame_ = false;
  std::string message = std::move(message_);
  message_.clear();
  return handler.finish(header_, std::move(message));
}

}  // namespace megatron
