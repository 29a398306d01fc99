// Scratch memory of kernels. It grows to the largest request and stays, so steady steps allocate
// nothing.
//
// Each thread has two blocks. kPrivate is for one thread's share of a loop. kShared is set up by
// the calling thread before a ParallelFor, for all threads of the loop. A block is valid until the
// same thread asks for the same block again; its contents are undefined.
#ifndef MEGATRON_OPS_CPU_WORKSPACE_H_
#define MEGATRON_OPS_CPU_WORKSPACE_H_

#include <cstdint>

namespace megatron::ops {

enum class WorkspaceKind { kPrivate, kShared };

// Returns at least `count` floats, aligned to 64 bytes.
float* Workspace(WorkspaceKind kind, int64_t count);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_WORKSPACE_H_
