#include "megatron/comm/launch/own_program.h"

#include <limits.h>
#include <unistd.h>

namespace megatron {

std::string OwnProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length <= 0 ? "/proc/self/exe" : std::string(path, length);
}

}  // namespace megatron
