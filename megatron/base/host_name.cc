#include "megatron/base/host_name.h"

#include <limits.h>
#include <unistd.h>

namespace megatron {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  const bool is_known = gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0;
  return is_known ? name : "an unnamed host";
}

}  // namespace megatron
