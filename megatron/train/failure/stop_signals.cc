#include "megatron/train/failure/stop_signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/time/time.h"

namespace megatron {
namespace {

// A signal handler can reach nothing but a global.
std::atomic<int> received{0};
std::atomic<bool> answers{true};
std::atomic<int64_t> received_at{0};  // nanoseconds; 0: nothing was received
std::atomic<int64_t> request_nanoseconds{0};
static_assert(std::atomic<int64_t>::is_always_lock_free, "a handler may touch it");

// A handler may ask this clock.
int64_t NowNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

void Handle(int signal_number) {
  const int64_t now = NowNanoseconds();
  int64_t first = 0;
  if (received_at.compare_exchange_strong(first, now)) {
    received = signal_number;
    if (!answers) return;
    constexpr char kMessage[] =
        "\nstopping after this step; another signal, a second or more later, stops at once\n";
    // Nothing can be done about a failure here, and what was interrupted may look at errno.
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    errno = error;
    return;
  }
  if (signal_number == SIGHUP || now - first < request_nanoseconds) return;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void ListenForStopSignals(bool answer, absl::Duration one_request) {
  answers = answer;
  request_nanoseconds = absl::ToInt64Nanoseconds(one_request);
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int StopSignal() { return received.load(); }

}  // namespace megatron
