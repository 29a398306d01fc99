// Starts the ranks of a job, on this machine or on those of a hostfile.
//
//   launch --ranks=4 -- program --its_flags
//   launch --hostfile=hosts -- program --its_flags
//   launch --hostfile=hosts --num_nodes=4 --restarts=10 -- program --its_flags
//
// Each rank finds its number and the rendezvous address in its environment; its output lines are
// printed with "[rank N]" before them. The program ends with the code of the rank that failed
// first. With --restarts it starts the ranks again when one was lost; the machines of the hostfile
// behind the first --num_nodes are spares then. With --min_elastic_nodes or --min_ranks it goes on
// with fewer where too few are sound. With --in_process_recovery the ranks that are left go on, and
// lost ones are started again beside them.

#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/comm/launch/host_launcher.h"
#include "megatron/comm/launch/host_pool.h"
#include "megatron/comm/launch/host_watch.h"
#include "megatron/comm/launch/hostfile.h"
#include "megatron/comm/launch/launcher.h"
#include "megatron/comm/launch/own_program.h"
#include "megatron/comm/launch/rank_slots.h"
#include "megatron/comm/launch/restarts.h"
#include "megatron/train/failure/run_lock.h"
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
ABSL_FLAG(
    std::string, master_addr, "",
    "Where the ranks meet; empty: the first machine, or with --in_process_recovery this one.");
ABSL_FLAG(int, master_port, 29500, "The port there; 0, with --in_process_recovery: any free one.");
ABSL_FLAG(
    std::string, ssh,
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
    "The command that runs another on a machine: words, to which it and the command are added.");
ABSL_FLAG(int, restarts, 0,
          "Times to start the ranks again when one was lost, hangs or was ended by a signal; the "
          "program must continue where it was. Meanwhile no other run gets the directory to which "
          "pretrain_gpt saves. Machines behind the first --num_nodes are spares, also with "
          "--in_process_recovery.");
ABSL_FLAG(int, min_elastic_nodes, -1,
          "With --restarts and --hostfile: the least machines to go on with, without those that "
          "failed twice and have no spare; -1: all are needed.");
ABSL_FLAG(bool, in_process_recovery, false,
          "The job goes on when ranks or machines are lost, as pretrain_gpt does with "
          "parallel.in_process_recovery. They are started again beside the others. Ranks meet on "
          "this machine, which the others must reach.");
ABSL_FLAG(
    int, replacements, 10,
    "With --in_process_recovery: times that lost ranks are started again on each machine, and "
    "machines that have lost all of theirs.");
ABSL_FLAG(absl::Duration, stop_limit, absl::Seconds(18),
          "With --in_process_recovery: a rank that is stopped for so long is ended and started "
          "again; 0: it is waited for.");
ABSL_FLAG(
    absl::Duration, rejoin_interval, absl::ZeroDuration(),
    "With --min_elastic_nodes: how often machines that were left out because ssh did not "
    "reach them are asked whether they answer. When one does, the job is ended by SIGTERM and "
    "started with it; 0: never.");
ABSL_FLAG(int, min_ranks, -1,
          "With --restarts, without --hostfile: the least ranks to go on with, without the places "
          "of ranks that failed twice; -1: all are needed.");
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

// The code of a program that refuses its configuration, such as a number of ranks that cannot share
// the global batch.
constexpr int kRefused = 20;
// That of a program which has saved because SIGTERM asked it to end, and that of ssh itself.
constexpr int kSaved = 10, kSshFailed = 255;

// Starts the job on `most` machines or ranks. Where the program refuses a number that is less than
// `wanted`, the next smaller one is tried, down to `least`.
absl::StatusOr<LaunchResult> LaunchFewer(
    int wanted, int most, int least, absl::FunctionRef<absl::StatusOr<LaunchResult>(int)> launch) {
  for (int count = most;; --count) {
    absl::StatusOr<LaunchResult> result = launch(count);
    const bool refused = result.ok() && result->exit_code == kRefused && result->asked == 0;
    if (!refused || count == wanted || count <= least) return result;
    Tell(absl::StrCat(count, " of ", wanted, " are refused; trying ", count - 1));
  }
}

// The claim on the directory to which the job's ranks save (claim_line.h), for as long as this
// program lives. Without restarts nothing is claimed.
class DirectoryClaim {
 public:
  // The variables that tell ranks of it at a start.
  std::vector<std::pair<std::string, std::string>> Environment() const {
    if (!claims_) return {};
    return {{kClaimantVariable, name_}, {kClaimedVariable, claimed_}};
  }
  // Claims the directory that a line asks for. Returns whether it is such a line.
  bool Hears(absl::string_view line) {
    if (!claims_) return PassClaimLineOn(line);
    const std::optional<std::string> directory = ReadClaimLine(line);
    if (!directory) return false;
    claim_ = RunLock();  // a rank that asks again finds another directory there
    claimed_.clear();
    absl::StatusOr<RunLock> claim = RunLock::Claim(*directory, name_, kPatience);
    if (claim.ok()) {
      claim_ = *std::move(claim);
      claimed_ = *directory;
    } else {
      Tell(absl::StrCat("another run may begin in ", *directory,
                        " while this one waits to be started again: ", claim.status().message()));
    }
    return true;
  }

 private:
  // Whoever looks whether there is a claim disturbs one that is just made.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  const bool claims_ = absl::GetFlag(FLAGS_restarts) > 0;
  const std::string name_ = DescribeClaimant("launch");
  RunLock claim_;
  std::string claimed_;  // the directory; empty: there is none
};

ChildrenOptions Children(DirectoryClaim* claim) {
  ChildrenOptions options;
  options.grace = absl::GetFlag(FLAGS_grace);
  options.idle_limit = absl::GetFlag(FLAGS_idle_limit);
  options.takes_line = [claim](absl::string_view line) { return claim->Hears(line); };
  options.tell = Tell;
  if (!absl::GetFlag(FLAGS_in_process_recovery)) return options;
  options.goes_on = true;
  options.replacements = absl::GetFlag(FLAGS_replacements);
  options.stop_limit = absl::GetFlag(FLAGS_stop_limit);
  return options;
}

RestartOptions Restarts() {
  RestartOptions options;
  options.restarts = absl::GetFlag(FLAGS_restarts);
  return options;
}

// Watches the machines that were left out because ssh did not reach them; null: there are none.
absl::StatusOr<std::unique_ptr<HostWatch>> WatchHosts(const std::vector<std::string>& left_out,
                                                      const std::set<std::string>& unreachable,
                                                      const std::vector<std::string>& ssh) {
  const absl::Duration interval = absl::GetFlag(FLAGS_rejoin_interval);
  std::vector<HostWatch::Host> hosts;
  for (const std::string& name : left_out) {
    if (unreachable.count(name) == 0) continue;
    HostWatch::Host host = {name, ssh};
    host.command.push_back(name);
    host.command.push_back("true");
    hosts.push_back(std::move(host));
  }
  if (interval <= absl::ZeroDuration() || hosts.empty()) return nullptr;
  return HostWatch::Start(hosts, interval);
}

// Returns whether the job has ended because a watch asked it to.
bool WasEndedToGrow(const LaunchResult& result) {
  return result.asked == SIGTERM && !result.asked_twice &&
         (result.exit_code == kSaved || result.exit_code == 128 + SIGTERM);
}

absl::StatusOr<LaunchResult> LaunchOnFile(const std::string& path,
                                          const std::vector<std::string>& command,
                                          DirectoryClaim* claim) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            AsArgument(ReadFileToString(PosixFileSystem(), path, kMaxHostfile)));
  const RestartOptions restarts = Restarts();
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<HostSlots> all, ParseHostfile(text, path));
  HostFilter filter = {absl::GetFlag(FLAGS_include), absl::GetFlag(FLAGS_exclude),
                       absl::GetFlag(FLAGS_num_nodes), absl::GetFlag(FLAGS_num_gpus)};
  MEGATRON_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, FilterHosts(all, filter));
  const int wanted = static_cast<int>(hosts.size());
  if (restarts.restarts > 0 || absl::GetFlag(FLAGS_in_process_recovery)) {
    filter.num_nodes = -1;
    MEGATRON_ASSIGN_OR_RETURN(hosts, FilterHosts(all, filter));
  }
  const int least = absl::GetFlag(FLAGS_min_elastic_nodes);
  HostPool pool(std::move(hosts), wanted, least);
  HostLaunchOptions options;
  options.command = command;
  options.ssh = absl::StrSplit(absl::GetFlag(FLAGS_ssh), ' ', absl::SkipEmpty());
  if (options.ssh.empty()) return absl::InvalidArgumentError("--ssh is empty");
  options.agent = {OwnProgram(), "--agent"};
  options.master_addr = absl::GetFlag(FLAGS_master_addr);
  options.master_port = absl::GetFlag(FLAGS_master_port);
  options.children = Children(claim);
  options.next_host = [&pool](size_t place) { return pool.Replace(place); };
  char directory[PATH_MAX];
  if (getcwd(directory, sizeof(directory)) == nullptr) {
    return absl::ErrnoToStatus(errno, "where this is");
  }
  options.directory = directory;
  for (const auto& [name, value] : ProcessEnvironment()) {
    if (Travels(name, absl::GetFlag(FLAGS_export))) options.environment.emplace_back(name, value);
  }
  std::set<std::string> unreachable;  // hosts whose last failure was one of ssh
  const auto launch = [&](const StartOfJob& start) -> absl::StatusOr<LaunchResult> {
    HostLaunchOptions job = options;
    for (auto& variable : start.Environment()) job.environment.push_back(std::move(variable));
    for (auto& variable : claim->Environment()) job.environment.push_back(std::move(variable));
    while (true) {
      MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<HostWatch> watch,
                                WatchHosts(pool.LeftOut(), unreachable, options.ssh));
      if (watch != nullptr) job.children.control = watch->control();
      const std::vector<HostSlots> chosen = pool.Chosen();
      MEGATRON_ASSIGN_OR_RETURN(
          LaunchResult result,
          LaunchFewer(wanted, static_cast<int>(chosen.size()), std::max(least, 1), [&](int count) {
            job.hosts.assign(chosen.begin(), chosen.begin() + count);
            return LaunchOnHosts(job);
          }));
      const std::string back = watch == nullptr ? "" : watch->Answered();
      job.children.control = -1;
      if (back.empty() || !WasEndedToGrow(result)) {
        const std::vector<std::string> failed = HostsToBlame(result);
        pool.Fail(failed);
        for (const std::string& host : failed) {
          unreachable.erase(host);
          if (result.exit_code == kSshFailed) unreachable.insert(host);
        }
        return result;
      }
      Tell(absl::StrCat("host ", back, " answers again; starting with it"));
      pool.TakeBack(back);
    }
  };
  return LaunchWithRestarts(restarts, launch, Tell);
}

// Flags that would have no effect are refused.
absl::Status CheckLeast() {
  const bool on_hosts = !absl::GetFlag(FLAGS_hostfile).empty();
  for (const auto& [name, value, belongs] :
       {std::make_tuple("--min_elastic_nodes", absl::GetFlag(FLAGS_min_elastic_nodes), on_hosts),
        std::make_tuple("--min_ranks", absl::GetFlag(FLAGS_min_ranks), !on_hosts)}) {
    if (value == -1) continue;
    if (value < 1) return absl::InvalidArgumentError(absl::StrCat(name, " is less than 1"));
    if (!belongs) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no effect ", on_hosts ? "with" : "without", " --hostfile"));
    }
    if (absl::GetFlag(FLAGS_restarts) == 0)
      return absl::InvalidArgumentError(absl::StrCat(name, " has no effect without --restarts"));
  }
  if (absl::GetFlag(FLAGS_rejoin_interval) != absl::ZeroDuration() &&
      absl::GetFlag(FLAGS_min_elastic_nodes) == -1) {
    return absl::InvalidArgumentError(
        "--rejoin_interval has no effect without "
        "--min_elastic_nodes");
  }
  return absl::OkStatus();
}

absl::Status CheckRecovery() {
  if (absl::GetFlag(FLAGS_replacements) < 0)
    return absl::InvalidArgumentError("--replacements is negative");
  if (absl::GetFlag(FLAGS_master_port) == 0 && !absl::GetFlag(FLAGS_in_process_recovery))
    return absl::InvalidArgumentError("--master_port=0 needs --in_process_recovery");
  return absl::OkStatus();
}

absl::StatusOr<LaunchResult> Launch(const std::vector<std::string>& command) {
  if (absl::GetFlag(FLAGS_agent)) return RunAgent(STDIN_FILENO);
  if (absl::GetFlag(FLAGS_restarts) < 0)
    return absl::InvalidArgumentError("--restarts is negative");
  MEGATRON_RETURN_IF_ERROR(CheckLeast());
  MEGATRON_RETURN_IF_ERROR(CheckRecovery());
  if (absl::GetFlag(FLAGS_ranks) < 1 || command.empty()) {
    return absl::InvalidArgumentError(
        "usage: launch --ranks=N -- PROGRAM ARGUMENTS...  or  launch --hostfile=FILE -- PROGRAM "
        "ARGUMENTS...");
  }
  DirectoryClaim claim;
  const std::string hostfile = absl::GetFlag(FLAGS_hostfile);
  if (!hostfile.empty()) return LaunchOnFile(hostfile, command, &claim);
  LaunchOptions options;
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.children = Children(&claim);
  options.serves_store = options.children.goes_on;
  options.command = command;
  const int wanted = options.ranks, least = absl::GetFlag(FLAGS_min_ranks);
  if (least > wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_ranks=", least, " is more than --ranks=", wanted));
  }
  RankSlots slots(wanted);
  const auto launch = [&](const StartOfJob& start) -> absl::StatusOr<LaunchResult> {
    const int most = least < 0 || slots.sound() < least ? wanted : slots.sound();
    if (most < wanted) {
      Tell(absl::StrCat("going on with ", most, " of ", wanted,
                        " ranks, without the places of ranks that failed twice"));
    }
    MEGATRON_ASSIGN_OR_RETURN(LaunchResult result,
                              LaunchFewer(wanted, most, std::max(least, 1), [&](int count) {
                                slots.Take(count);
                                options.ranks = count;
                                options.environment = start.Environment();
                                for (auto& variable : claim.Environment())
                                  options.environment.push_back(std::move(variable));
                                for (auto& variable : slots.Environment(ProcessEnvironment()))
                                  options.environment.push_back(std::move(variable));
                                return LaunchRanks(options);
                              }));
    slots.Fail(result);
    return result;
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
    if (code != 0 && !result.errors_wait) megatron::Tell(result.Describe());
    return absl::OkStatus();
  };
  const int failed = megatron::RunTool(
      argc, argv, "Starts the ranks of a job, on this machine or on those of a hostfile.", launch);
  return failed != 0 ? failed : code;
}
