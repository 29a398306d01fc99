// Ctrl-C and SIGTERM as a wish that a program looks at where it suits.
#ifndef MEGATRON_TOOLS_INTERRUPT_H_
#define MEGATRON_TOOLS_INTERRUPT_H_

namespace megatron {

// From here on the first SIGINT or SIGTERM is noted; the second one kills.
void CatchInterrupts();

bool Interrupted();

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTERRUPT_H_
