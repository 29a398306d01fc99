// Scratch memory of kernels: grows to the largest request and stays, so that steady steps allocate
// nothing.
//
// Each thread has two blocks. kPrivate is for what one thread's share of a loop needs; kShared is
// what the calling thread sets up before a ParallelFor for all threads of the loop, its own share
// included. A block is valid until the same thread asks for the same block again; contents are
// undefined.
#ifndef MEGATRON_OPS_CPU_WORKSPACE_H_
#define MEGATRON_OPS_CPU_WORKSPACE_H_

#include <cstdint>

namespace megatron::ops {

enum class WorkspaceKind { kPrivate, kShared };

// At least `count` floats, aligned to 64 bytes.
float* Workspace(WorkspaceKind kind, int64_t count);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_WORKSPACE_H_
