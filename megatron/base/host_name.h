// The name of the machine that this process runs on.
#ifndef MEGATRON_BASE_HOST_NAME_H_
#define MEGATRON_BASE_HOST_NAME_H_

#include <string>

namespace megatron {

// Returns the machine's name, or "an unnamed host" where the system tells none.
std::string HostName();

}  // namespace megatron

#endif  // MEGATRON_BASE_HOST_NAME_H_
