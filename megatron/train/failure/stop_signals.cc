#include "megatron/train/failure/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace megatron {
namespace {

// A signal handler can reach nothing but a global.
std::atomic<int> received{0};
std::atomic<bool> answers{true};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may touch it");

void Handle(int signal_number) {
  int expected = 0;
  if (received.compare_exchange_strong(expected, signal_number)) {
    if (!answers) return;
    constexpr char kMessage[] = "\nstopping after this step; a second signal stops at once\n";
    // Nothing can be done about a failure here, and what was interrupted may look at errno.
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    errno = error;
    return;
  }
  if (signal_number == SIGHUP) return;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void ListenForStopSignals(bool answer) {
  answers = answer;
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
