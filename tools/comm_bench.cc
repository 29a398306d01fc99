// Measures collectives as nccl-tests do, over threads, TCP or NCCL.
//
//   comm_bench --backend=tcp --ranks=4 -b 8 -e 64M -f 2 --svg=tcp.svg
//
// Buffers are in host memory, with --backend=nccl on a GPU for each rank.
//
// The program is one rank of the launcher's world when a launcher started it (torchrun, Slurm, MPI:
// MEGATRON_JOB_SECRET_FILE set).

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/algorithm_communicator.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/hierarchical/hierarchical_communicator.h"
#include "tools/bandwidth/bench_ranks.h"
#include "tools/bandwidth/comm_bench_measure.h"
#include "tools/bandwidth/comm_bench_report.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, backend, "thread", "thread, tcp or nccl.");
ABSL_FLAG(int, ranks, 2, "Ranks to start on this machine; a launcher's world has its own size.");
ABSL_FLAG(int, group_size, 0,
          "Ranks of a group: the world is cut into groups of neighbours that all run at once, and "
          "the first is reported. 0 means the whole world.");
ABSL_FLAG(int, ranks_per_host, 0,
          "Measures each collective once more as a hierarchical one: within hosts of so many "
          "neighbours of a group, and between hosts. 0 means flat alone.");
ABSL_FLAG(std::string, algorithm, "mesh",
          "The way between ranks: mesh, ring, tree, a list of these, or all. Each is measured. "
          "An all-to-all and a sendrecv have the mesh alone; NCCL chooses its own by NCCL_ALGO.");
ABSL_FLAG(absl::Duration, link_delay, absl::ZeroDuration(),
          "With one of the --link flags ranks that this program starts with --backend=tcp are on "
          "hosts with a slow network between them, which a process emulates. This is the time from "
          "host to host.");
ABSL_FLAG(absl::Duration, link_jitter, absl::ZeroDuration(),
          "The most that chance adds to the delay.");
ABSL_FLAG(double, link_mbit, 0,
          "The rate of each host's link in Mbit/s, in each direction. 0 means no limit.");
ABSL_FLAG(double, link_loss, 0,
          "The part of packets that is lost; each holds up its connection for 200 ms.");
ABSL_FLAG(int, link_ranks_per_host, 1, "Neighbouring ranks that share a host and its link.");
ABSL_FLAG(std::string, op, "all_reduce",
          "all_reduce, all_gather, reduce_scatter, alltoall, broadcast, sendrecv, a list of these, "
          "or all.");
ABSL_FLAG(std::string, b, "8", "The smallest size in bytes; K, M and G are powers of 1024.");
ABSL_FLAG(std::string, e, "64M", "The largest size.");
ABSL_FLAG(double, f, 4, "Each size is so many times the one before.");
ABSL_FLAG(int, n, 20, "Calls that are timed for each size.");
ABSL_FLAG(int, w, 1, "Calls before those.");
ABSL_FLAG(int, c, 1, "1 checks the results of each size.");
ABSL_FLAG(std::string, d, "fp32", "fp32, bf16, fp16, int32, int64, uint8 or uint16.");
ABSL_FLAG(std::string, o, "sum", "How elements are reduced: sum, max or min.");
ABSL_FLAG(int, r, 0, "The root of broadcasts.");
ABSL_FLAG(int, threads, 1, "Threads of each rank.");
ABSL_FLAG(std::string, json, "", "Where to write the figures.");
ABSL_FLAG(std::string, svg, "", "Where to write a picture of bandwidth against size.");

namespace megatron {
namespace {

struct Plan {
  std::vector<BenchOperation> operations;
  CommBenchOptions options;
  std::vector<CollectiveAlgorithm> algorithms;
  int group_size = 0, ranks_per_host = 0;
};

absl::StatusOr<std::vector<BenchOperation>> ParseOperations(const std::string& text) {
  std::vector<BenchOperation> operations;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t before = operations.size();
    for (BenchOperation operation : kBenchOperations) {
      if (name == "all" || name == Name(operation)) operations.push_back(operation);
    }
    if (operations.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat("--op: there is no operation '", name, "'"));
    }
  }
  return operations;
}

absl::StatusOr<std::vector<CollectiveAlgorithm>> ParseAlgorithms(const std::string& text) {
  std::vector<CollectiveAlgorithm> algorithms;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t before = algorithms.size();
    for (CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
      if (name == "all" || name == Name(algorithm)) algorithms.push_back(algorithm);
    }
    if (algorithms.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("--algorithm: there is no algorithm '", name, "'"));
    }
  }
  return algorithms;
}

// Returns the slow network that the flags ask for, if any, and its description.
std::optional<LinkOptions> LinkOfFlags(std::string* text) {
  LinkOptions link;
  link.delay = absl::GetFlag(FLAGS_link_delay);
  link.jitter = absl::GetFlag(FLAGS_link_jitter);
  link.bytes_per_second = absl::GetFlag(FLAGS_link_mbit) * 1e6 / 8;
  link.loss = absl::GetFlag(FLAGS_link_loss);
  if (link.delay != absl::ZeroDuration())
    absl::StrAppend(text, ", ", absl::FormatDuration(link.delay), " delay");
  if (link.jitter != absl::ZeroDuration())
    absl::StrAppend(text, ", ", absl::FormatDuration(link.jitter), " jitter");
  if (link.bytes_per_second != 0)
    absl::StrAppend(text, ", ", absl::GetFlag(FLAGS_link_mbit), " Mbit/s");
  if (link.loss != 0) absl::StrAppend(text, ", ", 100 * link.loss, " % lost");
  if (text->empty()) return std::nullopt;
  return link;
}

absl::StatusOr<ReduceOp> ParseReduction(const std::string& text) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    if (text == Name(op)) return op;
  }
  return absl::InvalidArgumentError(absl::StrCat("-o: there is no reduction '", text, "'"));
}

absl::StatusOr<Plan> ReadFlags() {
  Plan plan;
  MEGATRON_ASSIGN_OR_RETURN(plan.operations, ParseOperations(absl::GetFlag(FLAGS_op)));
  MEGATRON_ASSIGN_OR_RETURN(plan.algorithms, ParseAlgorithms(absl::GetFlag(FLAGS_algorithm)));
  if (absl::GetFlag(FLAGS_backend) == "nccl" &&
      plan.algorithms != std::vector<CollectiveAlgorithm>{CollectiveAlgorithm::kMesh}) {
    return absl::InvalidArgumentError("--algorithm: NCCL chooses its own, by NCCL_ALGO");
  }
  MEGATRON_ASSIGN_OR_RETURN(const int64_t begin, ParseByteSize(absl::GetFlag(FLAGS_b)));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t end, ParseByteSize(absl::GetFlag(FLAGS_e)));
  if (begin < 1 || end < begin || !(absl::GetFlag(FLAGS_f) > 1)) {
    return absl::InvalidArgumentError("sizes go from -b, at least 1, up to -e, in steps of -f > 1");
  }
  plan.options.sizes = SizesBetween(begin, end, absl::GetFlag(FLAGS_f));
  if (!FromName(absl::GetFlag(FLAGS_d), &plan.options.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("-d: there is no type '", absl::GetFlag(FLAGS_d), "'"));
  }
  MEGATRON_ASSIGN_OR_RETURN(plan.options.reduce, ParseReduction(absl::GetFlag(FLAGS_o)));
  plan.options.root = absl::GetFlag(FLAGS_r);
  plan.options.iterations = absl::GetFlag(FLAGS_n);
  plan.options.warmup = absl::GetFlag(FLAGS_w);
  plan.options.check = absl::GetFlag(FLAGS_c) != 0;
  plan.group_size = absl::GetFlag(FLAGS_group_size);
  plan.ranks_per_host = absl::GetFlag(FLAGS_ranks_per_host);
  if (plan.options.iterations < 1 || absl::GetFlag(FLAGS_threads) < 1) {
    return absl::InvalidArgumentError("-n and --threads are at least 1");
  }
  return plan;
}

// Returns groups of neighbouring ranks; the last is smaller if sizes do not divide.
absl::StatusOr<ProcessGroup> SplitWorld(const ProcessGroup& world, int group_size) {
  if (group_size <= 0 || group_size >= world.size()) return world;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank % group_size == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  MEGATRON_ASSIGN_OR_RETURN(auto group, world.communicator()->Split(groups, "bench"));
  return ProcessGroup(group);
}

// Returns the group with hierarchical collectives.
absl::StatusOr<ProcessGroup> WithHosts(const ProcessGroup& group, int ranks_per_host) {
  if (ranks_per_host < 2 || ranks_per_host >= group.size() || group.size() % ranks_per_host != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks_per_host=", ranks_per_host,
                                                   " does not cut a group of ", group.size(),
                                                   " ranks into several hosts of several ranks"));
  }
  std::vector<int> hosts;
  for (int rank = 0; rank < group.size(); ++rank) hosts.push_back(rank / ranks_per_host);
  MEGATRON_ASSIGN_OR_RETURN(auto levels, Hierarchical(group.communicator(), hosts));
  return ProcessGroup(levels);
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  return WriteFileAtomically(PosixFileSystem(), path, text);
}

absl::Status RunRank(const ProcessGroup& world, const Stream& stream, const Plan& plan) {
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup group, SplitWorld(world, plan.group_size));
  if (plan.options.root < 0 || plan.options.root >= group.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("-r: there is no rank ", plan.options.root, " among ", group.size()));
  }
  if (group.size() == 1) {
    return absl::InvalidArgumentError("a group of one rank has nobody to talk to");
  }
  std::vector<CommBenchResult> results;
  const auto measure = [&](BenchOperation operation, const ProcessGroup& over,
                           CollectiveAlgorithm algorithm, int ranks_per_host) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(CommBenchResult result,
                              MeasureCollective(operation, plan.options, over, stream));
    result.algorithm = algorithm;
    result.ranks_per_host = ranks_per_host;
    if (world.rank() == 0) {
      std::fputs(CommBenchTable(result).c_str(), stdout);
      std::fflush(stdout);
    }
    results.push_back(std::move(result));
    return absl::OkStatus();
  };
  for (const CollectiveAlgorithm algorithm : plan.algorithms) {
    const ProcessGroup over(WithAlgorithm(group.communicator(), algorithm));
    ProcessGroup levels;
    if (plan.ranks_per_host != 0) {
      MEGATRON_ASSIGN_OR_RETURN(levels, WithHosts(over, plan.ranks_per_host));
    }
    for (BenchOperation operation : plan.operations) {
      const bool mesh_alone =
          operation == BenchOperation::kAllToAll || operation == BenchOperation::kSendRecv;
      if (mesh_alone && algorithm != CollectiveAlgorithm::kMesh) continue;
      MEGATRON_RETURN_IF_ERROR(measure(operation, over, algorithm, 0));
      const bool has_levels =
          operation != BenchOperation::kBroadcast && operation != BenchOperation::kSendRecv;
      if (plan.ranks_per_host != 0 && has_levels) {
        MEGATRON_RETURN_IF_ERROR(measure(operation, levels, algorithm, plan.ranks_per_host));
      }
    }
  }
  int64_t wrong = 0;
  for (const CommBenchResult& result : results) wrong += result.wrong();
  if (world.rank() == 0) {
    const std::string backend = absl::GetFlag(FLAGS_backend);
    MEGATRON_RETURN_IF_ERROR(Write(absl::GetFlag(FLAGS_json), CommBenchJson(backend, results)));
    std::string link;
    LinkOfFlags(&link);
    MEGATRON_RETURN_IF_ERROR(
        Write(absl::GetFlag(FLAGS_svg),
              CommBenchSvg(absl::StrCat("Bandwidth, ", backend, link), results)));
  }
  if (wrong > 0) return absl::DataLossError(absl::StrCat(wrong, " elements are wrong"));
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", arguments[0], "' is no flag"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const Plan plan, ReadFlags());
  std::string link;
  BenchRanksOptions options = {absl::GetFlag(FLAGS_backend), absl::GetFlag(FLAGS_ranks),
                               absl::GetFlag(FLAGS_threads), LinkOfFlags(&link),
                               absl::GetFlag(FLAGS_link_ranks_per_host)};
  if (options.ranks_per_link_host < 1) {
    return absl::InvalidArgumentError("--link_ranks_per_host is at least 1");
  }
  if (options.ranks_per_link_host > 1 && !options.link.has_value()) {
    return absl::InvalidArgumentError(
        "--link_ranks_per_host has no effect without another flag of the link");
  }
  return RunBenchRanks(
      options, [&](const BenchRank& rank) { return RunRank(rank.world, rank.stream, plan); });
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Measures collectives as nccl-tests do, over threads, TCP or NCCL.",
                           megatron::Main);
}
