// The file of the running program, for programs that start themselves again.
#ifndef MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_
#define MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_

#include <string>

namespace megatron {

// Returns the path that the file which this process runs had at the first call. A later version may
// have taken its place since.
std::string OwnProgram();

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_OWN_PROGRAM_H_
