// Wakes a thread that sleeps in poll().
#ifndef MEGATRON_COMM_SOCKET_WAKE_EVENT_H_
#define MEGATRON_COMM_SOCKET_WAKE_EVENT_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "megatron/comm/socket/socket.h"

namespace megatron {

// Threads: any may set it; it waits for nobody.
class WakeEvent {
 public:
  WakeEvent() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

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
  const Socket event_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_WAKE_EVENT_H_
