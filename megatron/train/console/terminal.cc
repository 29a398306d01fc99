#include "megatron/train/console/terminal.h"

#include <sys/ioctl.h>

namespace megatron {

int TerminalColumns(std::FILE* stream, int otherwise) {
  winsize size = {};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return otherwise;
  return size.ws_col;
}

}  // namespace megatron
