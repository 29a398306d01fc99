// Runs a function as each rank of a TcpWorld on this machine, for tests and benchmarks: RunRanks
// (run_ranks.h) over TCP, with ranks that are threads or processes.
#ifndef MEGATRON_COMM_TCP_RUN_TCP_RANKS_H_
#define MEGATRON_COMM_TCP_RUN_TCP_RANKS_H_

#include <functional>

#include "absl/status/status.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/tcp_communicator.h"

namespace megatron {

using RankFunction = std::function<absl::Status(int rank, const ProcessGroup& world)>;
using RankOptions = std::function<void(TcpWorldOptions* options)>;

// `options` says all but rank and size; on_rank, if there is one, changes those of each rank. A
// rank that returns an error aborts the others' calls. The result is the status of the first rank
// whose world failed, or that ended otherwise.
absl::Status RunTcpRanksOnThreads(int size, const RankFunction& fn,
                                  const TcpWorldOptions& options = {},
                                  const RankOptions& on_rank = {});

// Each rank is a child of this process, which may not have other threads: ranks start as copies of
// it. They tell what they found by their status alone.
absl::Status RunTcpRanksInProcesses(int size, const RankFunction& fn,
                                    const TcpWorldOptions& options = {},
                                    const RankOptions& on_rank = {});

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_RUN_TCP_RANKS_H_
