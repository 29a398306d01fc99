// Lets a program check for Ctrl-C and SIGTERM at suitable places.
#ifndef MEGATRON_TOOLS_COMMON_INTERRUPT_H_
#define MEGATRON_TOOLS_COMMON_INTERRUPT_H_

#include <atomic>

#include "absl/status/status.h"

namespace megatron {

// Notes the first SIGINT or SIGTERM from now on; the second one kills.
void CatchInterrupts();

bool Interrupted();

// Returns OK, or after a signal the error with which the program ends after removing what it wrote.
absl::Status CheckInterrupted();

// Returns the flag that a signal sets, for functions that take such a flag.
const std::atomic<bool>* InterruptFlag();

// Makes a SIGINT or SIGTERM from now on end the process with code 130 and "error: interrupted;
// `what`". It serves programs that leave nothing half done and have no place to check for an
// interrupt. `what` must live until the process ends.
void EndWhenInterrupted(const char* what);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_INTERRUPT_H_
