// Asks machines again and again whether they answer, while a job runs without them, and asks the
// job to end when one does. It is a process of its own, so that a launcher needs no thread.
#ifndef MEGATRON_COMM_LAUNCH_HOST_WATCH_H_
#define MEGATRON_COMM_LAUNCH_HOST_WATCH_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megatron {

class HostWatch {
 public:
  struct Host {
    std::string name;
    std::vector<std::string> command;  // found along $PATH; ends with 0 if the machine answers
  };

  // Runs the commands one after the other, for the first time after `interval`, until one ends with
  // 0. Call it from a program that has no other thread. The process keeps none of the program's
  // files but the standard ones.
  static absl::StatusOr<std::unique_ptr<HostWatch>> Start(const std::vector<Host>& hosts,
                                                          absl::Duration interval);
  // Ends the process.
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // For ChildrenOptions::control: SIGTERM comes there when a machine has answered.
  int control() const { return control_[0]; }
  // Returns the name of the machine that has answered; empty if none has.
  std::string Answered() const;

 private:
  HostWatch() = default;

  // Pipes from the process. The write ends are open here too, so that their end is never read.
  int control_[2] = {-1, -1}, answer_[2] = {-1, -1};
  pid_t pid_ = -1;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_HOST_WATCH_H_
