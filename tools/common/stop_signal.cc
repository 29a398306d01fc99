#include "tools/common/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "glog/logging.h"
#include "megatron/train/failure/exit_code.h"

namespace megatron {
namespace {

constexpr timespec kLook = {0, 50'000'000};

}  // namespace

StopSignal::StopSignal(const char* what) : what_(what) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  PCHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
  thread_ = std::thread([this] { Watch(); });
}

void StopSignal::Watch() {
  while (!started_) {
    if (sigtimedwait(&signals_, nullptr, &kLook) < 0) continue;
    std::fprintf(stderr, "\nerror: interrupted; %s\n", what_);
    // Other threads are at work, and what they use must stay.
    _exit(kExitInterrupted);
  }
}

void StopSignal::Started() {
  started_ = true;
  if (thread_.joinable()) thread_.join();
}

void StopSignal::Await() {
  CHECK(started_);
  int signal = 0;
  sigwait(&signals_, &signal);
  PCHECK(pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr) == 0);
}

}  // namespace megatron
