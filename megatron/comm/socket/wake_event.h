// Wakes a thread that sleeps in poll().
#ifndef MEGATRON_COMM_SOCKET_WAKE_EVENT_H_
#define MEGATRON_COMM_SOCKET_WAKE_EVENT_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

// Threads: any may set it; it waits for nobody.
class WakeEvent {
 public:
  // Fails where the process can have no more descriptors: nobody could wake the thread then.
  static absl::StatusOr<WakeEvent> Create() {
    Socket event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (event.fd() < 0) return absl::ErrnoToStatus(errno, "eventfd");
    return WakeEvent(std::move(event));
  }

  int fd() const { return event_.fd(); }  // readable once it has been set
  void Set() const {
    const uint64_t one = 1;
    (void)!write(event_.fd(), &one, sizeof(one));
  }
  void Clear() const {
    uint64_t count;
    (void)!read(event_.fd(), &count, sizeof(count));
  }

 private:
  explicit WakeEvent(Socket event) : event_(std::move(event)) {}

  Socket event_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_WAKE_EVENT_H_
