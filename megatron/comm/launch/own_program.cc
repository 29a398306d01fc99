#include "megatron/comm/launch/own_program.h"

#include <limits.h>
#include <unistd.h>

namespace megatron {
namespace {

std::string ReadOwnProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length <= 0 ? "/proc/self/exe" : std::string(path, length);
}

}  // namespace

std::string OwnProgram() {
  // The system adds " (deleted)" once another file has taken the place of this one.
  static const std::string* const path = new std::string(ReadOwnProgram());
  return *path;
}

}  // namespace megatron
