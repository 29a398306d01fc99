#include "tools/common/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace megatron {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<const char*> what_to_say{""};
static_assert(std::atomic<bool>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "a signal handler writes it");

void Catch(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// Ends the process as tool_main.h does with kCancelled, using only what a signal handler may call.
void End(int) {
  for (const char* text : {"\nerror: interrupted; ", what_to_say.load(), "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  _exit(130);
}

}  // namespace

void CatchInterrupts() {
  Catch([](int) { interrupted = true; });
}

bool Interrupted() { return interrupted; }

absl::Status CheckInterrupted() {
  if (!interrupted) return absl::OkStatus();
  return absl::CancelledError("interrupted; nothing was written");
}

const std::atomic<bool>* InterruptFlag() { return &interrupted; }

void EndWhenInterrupted(const char* what) {
  what_to_say = what;
  Catch(End);
}

}  // namespace megatron
