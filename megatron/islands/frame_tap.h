// A relay between islands and their server that sees each message of the islands, for tests.
#ifndef MEGATRON_ISLANDS_FRAME_TAP_H_
#define MEGATRON_ISLANDS_FRAME_TAP_H_

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/islands/island_protocol.h"

namespace megatron {

// Threads: one that takes connections, and two for each of them, which call `look`.
class FrameTap {
 public:
  // Called before a message goes on. Returns whether it does; else its connection ends.
  using Look = std::function<bool(const IslandMessage&)>;

  // `server` is HOST:PORT.
  FrameTap(const std::string& server, Look look)
      : server_(Endpoint::Parse(server).value()), look_(std::move(look)) {
    absl::StatusOr<Socket> listener = ListenTcp({"127.0.0.1", 0});
    CHECK(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    endpoint_ = LocalEndpoint(listener_).value();
    thread_ = std::thread([this] { Accept(); });
  }
  ~FrameTap() {
    stop_ = true;
    thread_.join();
    for (Pair& pair : pairs_) {
      End(&pair);
      pair.up.join();
      pair.down.join();
    }
  }

  // HOST:PORT, where islands connect.
  std::string address() const { return endpoint_.ToString(); }

 private:
  // What an island sends in the handshake (comm/socket/handshake.h).
  static constexpr size_t kHandshakeBytes = 24 + 32 + 32;

  struct Pair {
    Socket island, server;
    std::thread up, down;
  };

  static absl::Time Deadline() { return SteadyNow() + absl::Minutes(5); }
  static void End(Pair* pair) {
    shutdown(pair->island.fd(), SHUT_RDWR);
    shutdown(pair->server.fd(), SHUT_RDWR);
  }

  void Accept() {
    while (!stop_) {
      pollfd entry = {listener_.fd(), POLLIN, 0};
      if (poll(&entry, 1, 50) <= 0) continue;
      absl::StatusOr<Socket> island = AcceptTcp(listener_);
      if (!island.ok() || !island->valid()) continue;
      absl::StatusOr<Socket> server = ConnectTcp(server_, SteadyNow() + absl::Seconds(5));
      if (!server.ok()) continue;  // as if nobody listened
      pairs_.emplace_back();
      Pair* const pair = &pairs_.back();
      pair->island = *std::move(island);
      pair->server = *std::move(server);
      pair->up = std::thread([this, pair] {
        Up(pair);
        End(pair);
      });
      pair->down = std::thread([pair] {
        Down(pair);
        End(pair);
      });
    }
  }

  void Up(Pair* pair) {
    std::string bytes(kHandshakeBytes, '\0');
    if (!ReceiveAll(pair->island, &bytes[0], bytes.size(), Deadline()).ok()) return;
    if (!SendAll(pair->server, bytes, Deadline()).ok()) return;
    while (true) {
      std::string frame(kIslandLengthBytes, '\0');
      if (!ReceiveAll(pair->island, &frame[0], frame.size(), Deadline()).ok()) return;
      const size_t size = IslandMessageLength(frame).value();
      frame.resize(kIslandLengthBytes + size);
      if (!ReceiveAll(pair->island, &frame[kIslandLengthBytes], size, Deadline()).ok()) return;
      if (!look_(DecodeIslandMessage(absl::string_view(frame).substr(kIslandLengthBytes)).value()))
        return;
      if (!SendAll(pair->server, frame, Deadline()).ok()) return;
    }
  }

  static void Down(Pair* pair) {
    std::string bytes(1 << 16, '\0');
    while (true) {
      pollfd entry = {pair->server.fd(), POLLIN, 0};
      poll(&entry, 1, 1000);
      const ssize_t got = recv(pair->server.fd(), &bytes[0], bytes.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
      if (got > 0 &&
          !SendAll(pair->island, absl::string_view(bytes).substr(0, got), Deadline()).ok())
        return;
    }
  }

  const Endpoint server_;
  const Look look_;
  Socket listener_;
  Endpoint endpoint_;
  std::atomic<bool> stop_{false};
  std::list<Pair> pairs_;  // used by thread_ until it has ended
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_FRAME_TAP_H_
