// Ctrl-C and SIGTERM as a wish that a program looks at where it suits.
#ifndef MEGATRON_TOOLS_COMMON_INTERRUPT_H_
#define MEGATRON_TOOLS_COMMON_INTERRUPT_H_

#include <atomic>

#include "absl/status/status.h"

namespace megatron {

// Notes the first SIGINT or SIGTERM from now on; the second one kills.
void CatchInterrupts();

bool Interrupted();

// OK, or the error with which a program then ends that has removed what it wrote.
absl::Status CheckInterrupted();

// The same for those who take a flag to look at.
const std::atomic<bool>* InterruptFlag();

// For programs that leave nothing half done and have no place at which to look for an interrupt: a
// SIGINT or SIGTERM from now on ends the process with code 130 and "error: interrupted; `what`", a
// text that lives on.
void EndWhenInterrupted(const char* what);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_INTERRUPT_H_
