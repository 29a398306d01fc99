// Writes the file of parallel.topology_file: which ranks share a machine, and how fast they reach
// each other. It is started as the job would be, with the same launcher and the same ranks.
//
//   launch --ranks=4 -- probe_topology --output=topology.textproto
//
// Host names group ranks into machines. `nvidia-smi topo -m`, where it is there, says which GPUs
// NVLink joins and how many network cards there are. Messages between some pairs are timed, by TCP
// or, with --backend=nccl, between GPUs.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/host_name.h"
#include "megatron/base/status_macros.h"
#include "tools/bandwidth/bench_ranks.h"
#include "tools/bandwidth/comm_bench_measure.h"
#include "tools/common/tool_main.h"
#include "tools/topology/gpu_links.h"
#include "tools/topology/probe.h"

ABSL_FLAG(std::string, output, "", "The file to write; without it the text is printed alone.");
ABSL_FLAG(std::string, backend, "tcp", "tcp, or nccl between GPUs.");
ABSL_FLAG(int, ranks, 1, "Ranks to start on this machine where no launcher has started some.");
ABSL_FLAG(std::string, bytes, "8M", "Bytes of the messages that speeds are taken from.");
ABSL_FLAG(std::string, gpu_links, "",
          "A file with the output of `nvidia-smi topo -m`, in place of running it.");

namespace megatron {
namespace {

constexpr int64_t kMostTableBytes = int64_t{1} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 30;

// Returns what nvidia-smi prints, or nothing where it is not there.
std::string RunNvidiaSmi() {
  std::FILE* const pipe = popen("timeout 30 nvidia-smi topo -m 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  std::string text(kMostTableBytes, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  return pclose(pipe) == 0 ? text : "";
}

absl::StatusOr<ProbedHost> ThisHost(int local_rank) {
  ProbedHost host;
  host.name = HostName();
  if (local_rank != 0) return host;
  const std::string path = absl::GetFlag(FLAGS_gpu_links);
  if (path.empty()) {
    // A machine without GPUs has no table, and a driver's message is none.
    const absl::StatusOr<GpuLinks> links = ParseGpuLinks(RunNvidiaSmi());
    if (links.ok()) host.links = *links;
    return host;
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadFileToString(PosixFileSystem(), path, kMostTableBytes));
  MEGATRON_ASSIGN_OR_RETURN(host.links, ParseGpuLinks(text), _ << path);
  return host;
}

absl::Status Probe(const BenchRank& rank, int64_t bytes) {
  MEGATRON_ASSIGN_OR_RETURN(const ProbedHost host, ThisHost(rank.local_rank));
  MEGATRON_ASSIGN_OR_RETURN(MachineShape shape, GroupByHost(host, rank.host));
  MEGATRON_ASSIGN_OR_RETURN(
      const std::vector<PairTimes> times,
      TimePairs(PairsToTime(shape), bytes, rank.host, rank.world, rank.stream));
  SetSpeeds(times, &shape);
  if (rank.host.rank() != 0) return absl::OkStatus();
  const std::string text = FormatTopology(shape);
  MEGATRON_RETURN_IF_ERROR(
      WriteToStdout(absl::StrCat("GB/s of each way above the diagonal, microseconds of 8 bytes "
                                 "below it, both ways at once\n",
                                 FormatPairs(times), "\n", text)));
  const std::string output = absl::GetFlag(FLAGS_output);
  if (output.empty()) return absl::OkStatus();
  return WriteFileAtomically(
      PosixFileSystem(), output,
      absl::StrCat("# Written by probe_topology: ", shape.ranks(), " ranks, ",
                   absl::GetFlag(FLAGS_backend), ", messages of ", bytes, " bytes.\n", text));
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteSize(absl::GetFlag(FLAGS_bytes)));
  if (bytes < 1024 || bytes > kMostBytes)
    return absl::InvalidArgumentError("--bytes lies from 1K to 1G");
  return RunBenchRanks({absl::GetFlag(FLAGS_backend), absl::GetFlag(FLAGS_ranks), /*threads=*/1},
                       [&](const BenchRank& rank) { return Probe(rank, bytes); });
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv, "Writes the shape of the machines that ranks run on, for parallel.topology_file.",
      megatron::Main);
}
