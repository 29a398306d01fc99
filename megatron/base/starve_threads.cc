#include "megatron/base/starve_threads.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "glog/logging.h"

namespace megatron {
namespace {

std::atomic<int64_t> milliseconds{0};

void Rest(int) {
  const int error = errno;
  const int64_t time = milliseconds;
  timespec left = {time / 1000, time % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  errno = error;
}

}  // namespace

std::set<pid_t> ThreadIds() {
  std::set<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(std::atoi(entry.path().filename().c_str()));
  return threads;
}

std::set<pid_t> ThreadsSince(const std::set<pid_t>& before) {
  const std::set<pid_t> now = ThreadIds();
  std::set<pid_t> since;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                      std::inserter(since, since.end()));
  return since;
}

void Starve(const std::set<pid_t>& threads, absl::Duration time) {
  milliseconds = absl::ToInt64Milliseconds(time);
  struct sigaction action = {};
  action.sa_handler = Rest;
  PCHECK(sigaction(SIGUSR2, &action, nullptr) == 0);
  for (const pid_t thread : threads) PCHECK(syscall(SYS_tgkill, getpid(), thread, SIGUSR2) == 0);
}

}  // namespace megatron
