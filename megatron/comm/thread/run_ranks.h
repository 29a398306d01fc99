// Runs a function as each rank of a world of threads.
//
//   absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) {
//     return Train(rank, world);
//   });
#ifndef MEGATRON_COMM_THREAD_RUN_RANKS_H_
#define MEGATRON_COMM_THREAD_RUN_RANKS_H_

#include <functional>

#include "absl/status/status.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/thread_communicator.h"

namespace megatron {

// Calls fn(rank, world) on one thread per rank and returns when all have returned. A rank that
// returns an error aborts the others' calls. Returns the first error in time, prefixed with its
// rank.
absl::Status RunRanks(int size, const std::function<absl::Status(int, const ProcessGroup&)>& fn,
                      const ThreadWorldOptions& options = {});
// Runs the ranks in a world of the caller's.
absl::Status RunRanks(ThreadWorld* world,
                      const std::function<absl::Status(int, const ProcessGroup&)>& fn);

}  // namespace megatron

#endif  // MEGATRON_COMM_THREAD_RUN_RANKS_H_
