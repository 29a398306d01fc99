// What can be seen of processes from outside: whether they do anything.
#ifndef MEGATRON_COMM_LAUNCH_OUTSIDE_LOOK_H_
#define MEGATRON_COMM_LAUNCH_OUTSIDE_LOOK_H_

#include <sys/types.h>

#include <cstdint>

namespace megatron {

// Of a process and all that it has started, as far as that has stayed in its process group.
struct OutsideLook {
  int64_t ticks = 0;  // processor time used, in units of the system
  bool waits_for_disk = false;
  bool stopped = false;  // one of them, by a signal or a debugger
};

OutsideLook LookAtGroup(pid_t process_group);

// Of one process, without a look at all others.
bool IsStopped(pid_t process);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_OUTSIDE_LOOK_H_
