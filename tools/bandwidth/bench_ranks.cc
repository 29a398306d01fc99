#include "tools/bandwidth/bench_ranks.h"

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

constexpr int kMostRanks = 256;  // ranks of one machine

using RunRank = std::function<absl::Status(const BenchRank&)>;

absl::Status RunOnCpu(const ProcessGroup& world, int local_rank, int threads, const RunRank& run) {
  ThreadPool pool(threads);
  return run({world, world, Stream::Cpu(&pool), local_rank});
}

absl::Status RunOnGpu(const ProcessGroup& host, int local_rank, const RunRank& run) {
  if (NcclLibrary() == nullptr)
    return absl::InvalidArgumentError(
        "--backend=nccl: this program was built without --config=cuda");
  if (host.size() == 1) return absl::InvalidArgumentError("a world of one rank is not measured");
  if (local_rank >= CudaDeviceCount()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend=nccl takes a GPU for each rank: there are ", CudaDeviceCount()));
  }
  CudaStream cuda(local_rank);
  NcclWorldOptions options;
  options.device = local_rank;
  MEGATRON_ASSIGN_OR_RETURN(const auto world,
                            NcclWorld::Create(NcclLibrary(), host.communicator(), options));
  return run(
      {host, ProcessGroup(world->communicator()), Stream::Cuda(local_rank, &cuda), local_rank});
}

absl::Status RunOverLink(const BenchRanksOptions& options, const RankFunction& run) {
  MEGATRON_ASSIGN_OR_RETURN(const auto link, LinkProcess::Start(*options.link));
  std::vector<int> hosts;
  for (int rank = 0; rank < options.ranks; ++rank)
    hosts.push_back(rank / options.ranks_per_link_host);
  return RunTcpRanksInProcesses(options.ranks, run, {}, [&](TcpWorldOptions* mine) {
    mine->route = link->RouteOf(mine->rank, hosts);
  });
}

}  // namespace

absl::Status RunBenchRanks(const BenchRanksOptions& options, const RunRank& run) {
  MEGATRON_ASSIGN_OR_RETURN(const LaunchEnvironment launch,
                            ReadLaunchEnvironment(ProcessEnvironment()));
  if (options.link.has_value() && (launch.world_size > 1 || options.backend != "tcp")) {
    return absl::InvalidArgumentError(
        "a slow network is made between ranks that this program starts with --backend=tcp");
  }
  if (launch.world_size > 1) {
    if (options.backend != "tcp" && options.backend != "nccl") {
      return absl::InvalidArgumentError(
          "ranks that a launcher has started need --backend=tcp or --backend=nccl");
    }
    std::fprintf(stderr, "%s\n", launch.Describe().c_str());
    MEGATRON_ASSIGN_OR_RETURN(const JobSecret secret,
                              JobSecretFromEnvironment(ProcessEnvironment()));
    MEGATRON_ASSIGN_OR_RETURN(const auto job, TcpJob::Join(launch, secret));
    const ProcessGroup world(job->world().communicator());
    return options.backend == "nccl" ? RunOnGpu(world, launch.local_rank, run)
                                     : RunOnCpu(world, launch.local_rank, options.threads, run);
  }
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks lies from 1 to ", kMostRanks, ", not ", options.ranks));
  }
  const auto on_cpu = [&](int rank, const ProcessGroup& world) {
    return RunOnCpu(world, rank, options.threads, run);
  };
  if (options.backend == "nccl") {
    return RunRanks(options.ranks, [&](int rank, const ProcessGroup& world) {
      return RunOnGpu(world, rank, run);
    });
  }
  if (options.backend == "thread") return RunRanks(options.ranks, on_cpu);
  if (options.link.has_value()) return RunOverLink(options, on_cpu);
  if (options.backend == "tcp") return RunTcpRanksInProcesses(options.ranks, on_cpu);
  return absl::InvalidArgumentError(absl::StrCat("--backend: there is no '", options.backend, "'"));
}

}  // namespace megatron
