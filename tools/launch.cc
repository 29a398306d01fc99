// Starts the ranks of a job, on this machine or on those of a hostfile.
//
//   launch --ranks=4 -- program --its_flags
//   launch --hostfile=hosts -- program --its_flags
//   launch --hostfile=hosts --num_nodes=4 --restarts=10 -- program --its_flags
//
// Each rank finds its number and the rendezvous address in its environment; its output lines are
// printed with "[rank N]" before them. The program ends with the code of the rank that failed
// first. With --restarts it starts the ranks again when one was lost; the machines of the hostfile
// behind the first --num_nodes are spares then.

#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/host_launcher.h"
#include "megatron/comm/launch/host_pool.h"
#include "megatron/comm/launch/hostfile.h"
#include "megatron/comm/launch/launcher.h"
#include "megatron/comm/launch/own_program.h"
#include "megatron/comm/launch/restarts.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(int, ranks, 2, "Processes to start on this machine, without --hostfile.");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(4),
          "When a rank has failed, the time in which the others may end by themselves.");
ABSL_FLAG(
    absl::Duration, idle_limit, absl::ZeroDuration(),
    "When a rank has ended, another that is stopped or sleeps for so long fails with code 31; "
    "0: whoever sleeps is waited for.");
ABSL_FLAG(
    std::string, hostfile, "",
    "A file with a line 'NAME slots=N' for each machine, as DeepSpeed's: a rank for each slot, "
    "over ssh.");
ABSL_FLAG(std::string, include, "", "Machines, or slots of them, to use: 'worker-1@worker-2:0,2'.");
ABSL_FLAG(std::string, exclude, "", "Machines, or slots of them, not to use, written likewise.");
ABSL_FLAG(int, num_nodes, -1, "The first machines of the hostfile; -1: all.");
ABSL_FLAG(int, num_gpus, -1, "The first slots of each machine; -1: all.");
ABSL_FLAG(std::string, master_addr, "", "Where the ranks meet; empty: the first machine.");
ABSL_FLAG(int, master_port, 29500, "The port there.");
ABSL_FLAG(
    std::string, ssh,
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
    "The command that runs another on a machine: words, to which it and the command are added.");
ABSL_FLAG(int, restarts, 0,
          "Times to start the ranks again when one was lost, hangs or was ended by a signal; the "
          "program must continue where it was. Machines behind the first --num_nodes are spares.");
ABSL_FLAG(std::vector<std::string>, export, {},
          "Names of variables that the ranks get from here, besides MEGATRON_* and NCCL_*.");
ABSL_FLAG(bool, agent, false, "Used by --hostfile on the machines: reads its part of the job.");

extern char** environ;

namespace megatron {
namespace {

constexpr int64_t kMaxHostfile = 1 << 24;

// The launcher sets the secret of each job and the place of each rank itself.
bool Travels(const std::string& name, const std::vector<std::string>& named) {
  for (const std::string& other : named) {
    if (name == other) return true;
  }
  return (absl::StartsWith(name, "MEGATRON_") && !absl::StartsWith(name, "MEGATRON_JOB_SECRET")) ||
         absl::StartsWith(name, "NCCL_");
}

void Tell(absl::string_view line) {
  std::fprintf(stderr, "%s%s\n", kAgentReason, std::string(line).c_str());
}

RestartOptions Restarts() {
  RestartOptions options;
  options.restarts = absl::GetFlag(FLAGS_restarts);
  return options;
}

absl::StatusOr<LaunchResult> LaunchOnFile(const std::string& path,
                                          const std::vector<std::string>& command) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            AsArgument(ReadFileToString(PosixFileSystem(), path, kMaxHostfile)));
  const RestartOptions restarts = Restarts();
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<HostSlots> all, ParseHostfile(text, path));
  HostFilter filter = {absl::GetFlag(FLAGS_include), absl::GetFlag(FLAGS_exclude),
                       absl::GetFlag(FLAGS_num_nodes), absl::GetFlag(FLAGS_num_gpus)};
  MEGATRON_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, FilterHosts(all, filter));
  const int wanted = static_cast<int>(hosts.size());
  if (restarts.restarts > 0) {
    filter.num_nodes = -1;
    MEGATRON_ASSIGN_OR_RETURN(hosts, FilterHosts(all, filter));
  }
  HostPool pool(std::move(hosts), wanted);
  HostLaunchOptions options;
  options.command = command;
  options.ssh = absl::StrSplit(absl::GetFlag(FLAGS_ssh), ' ', absl::SkipEmpty());
  if (options.ssh.empty()) return absl::InvalidArgumentError("--ssh is empty");
  options.agent = {OwnProgram(), "--agent"};
  options.master_addr = absl::GetFlag(FLAGS_master_addr);
  options.master_port = absl::GetFlag(FLAGS_master_port);
  options.children.grace = absl::GetFlag(FLAGS_grace);
  options.children.idle_limit = absl::GetFlag(FLAGS_idle_limit);
  char directory[PATH_MAX];
  if (getcwd(directory, sizeof(directory)) == nullptr) {
    return absl::ErrnoToStatus(errno, "where this is");
  }
  options.directory = directory;
  for (const auto& [name, value] : ProcessEnvironment()) {
    if (Travels(name, absl::GetFlag(FLAGS_export))) options.environment.emplace_back(name, value);
  }
  const auto launch = [&](const StartOfJob& start) -> absl::StatusOr<LaunchResult> {
    HostLaunchOptions job = options;
    job.hosts = pool.Chosen();
    for (auto& variable : start.Environment()) job.environment.push_back(std::move(variable));
    MEGATRON_ASSIGN_OR_RETURN(LaunchResult result, LaunchOnHosts(job));
    pool.Fail(HostsToBlame(result));
    return result;
  };
  return LaunchWithRestarts(restarts, launch, Tell);
}

absl::StatusOr<LaunchResult> Launch(const std::vector<std::string>& command) {
  if (absl::GetFlag(FLAGS_agent)) return RunAgent(STDIN_FILENO);
  if (absl::GetFlag(FLAGS_restarts) < 0)
    return absl::InvalidArgumentError("--restarts is negative");
  if (absl::GetFlag(FLAGS_ranks) < 1 || command.empty()) {
    return absl::InvalidArgumentError(
        "usage: launch --ranks=N -- PROGRAM ARGUMENTS...  or  launch --hostfile=FILE -- PROGRAM "
        "ARGUMENTS...");
  }
  const std::string hostfile = absl::GetFlag(FLAGS_hostfile);
  if (!hostfile.empty()) return LaunchOnFile(hostfile, command);
  LaunchOptions options;
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.children.grace = absl::GetFlag(FLAGS_grace);
  options.children.idle_limit = absl::GetFlag(FLAGS_idle_limit);
  options.command = command;
  const auto launch = [&](const StartOfJob& start) {
    options.environment = start.Environment();
    return LaunchRanks(options);
  };
  return LaunchWithRestarts(Restarts(), launch, Tell);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  int code = 0;
  const auto launch = [&](const std::vector<std::string>& command) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const megatron::LaunchResult result, megatron::Launch(command));
    code = result.exit_code;
    if (code != 0) megatron::Tell(result.Describe());
    return absl::OkStatus();
  };
  const int failed = megatron::RunTool(
      argc, argv, "Starts the ranks of a job, on this machine or on those of a hostfile.", launch);
  return failed != 0 ? failed : code;
}
