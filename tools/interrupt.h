// Ctrl-C and SIGTERM as a wish that a program looks at where it suits.
#ifndef MEGATRON_TOOLS_INTERRUPT_H_
#define MEGATRON_TOOLS_INTERRUPT_H_

#include <atomic>

namespace megatron {

// From here on the first SIGINT or SIGTERM is noted; the second one kills.
void CatchInterrupts();

bool Interrupted();

// The same for those who take a flag to look at.
const std::atomic<bool>* InterruptFlag();

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTERRUPT_H_
