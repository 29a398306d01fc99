#ifndef MEGATRON_TRAIN_CONSOLE_TERMINAL_H_
#define MEGATRON_TRAIN_CONSOLE_TERMINAL_H_

#include <cstdio>

namespace megatron {

// Returns the width of the terminal to which the stream goes, or `otherwise` if it goes elsewhere
// or the width is unknown.
int TerminalColumns(std::FILE* stream, int otherwise);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONSOLE_TERMINAL_H_
