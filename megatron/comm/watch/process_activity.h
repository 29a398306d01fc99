// Reads from /proc whether other processes do anything.
#ifndef MEGATRON_COMM_WATCH_PROCESS_ACTIVITY_H_
#define MEGATRON_COMM_WATCH_PROCESS_ACTIVITY_H_

#include <sys/types.h>

#include <cstdint>

namespace megatron {

// The activity of a process and of all that it has started and that is still in its process group.
struct ProcessActivity {
  int64_t ticks = 0;  // processor time used, in the system's clock ticks
  bool waits_for_disk = false;
  bool stopped = false;  // one of the processes is stopped, by a signal or a debugger
};

ProcessActivity ActivityOfGroup(pid_t process_group);

// Returns whether one process is stopped. It does not look at any other.
bool IsStopped(pid_t process);

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_PROCESS_ACTIVITY_H_
