// Starts the ranks of a benchmark, or joins those that a launcher has started.
#ifndef TOOLS_BANDWIDTH_BENCH_RANKS_H_
#define TOOLS_BANDWIDTH_BENCH_RANKS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "megatron/comm/link_proxy/link_proxy.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct BenchRank {
  ProcessGroup host;   // all ranks, for tensors in host memory
  ProcessGroup world;  // all ranks, for tensors on the stream's device
  Stream stream;
  int local_rank = 0;  // the rank's number on its machine, and that of its GPU
};

struct BenchRanksOptions {
  std::string backend;  // thread, tcp or nccl
  int ranks = 1;        // to start on this machine; a launcher's world has its own size
  int threads = 1;      // each rank's threads, on the CPU
  // A slow network between hosts of ranks_per_link_host neighbours each, for --backend=tcp.
  std::optional<LinkOptions> link;
  int ranks_per_link_host = 1;
};

// Runs the function on every rank: threads, processes, or this process as one rank of a launcher's
// world (MEGATRON_JOB_SECRET_FILE set). Errors of the options name the tool's flags.
absl::Status RunBenchRanks(const BenchRanksOptions& options,
                           const std::function<absl::Status(const BenchRank&)>& run);

}  // namespace megatron

#endif  // TOOLS_BANDWIDTH_BENCH_RANKS_H_
