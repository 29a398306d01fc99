// The file of the running program, for programs that start themselves again.
#ifndef MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_
#define MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_

#include <string>

namespace megatron {

// Returns the path of the file that this process runs.
std::string OwnProgram();

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_
