#include "megatron/comm/launch/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/tcp_store.h"

namespace megatron {
namespace {

// A process that serves a job's store until this object is destroyed, or the launcher ends.
class StoreProcess {
 public:
  static absl::StatusOr<std::unique_ptr<StoreProcess>> Start(Socket listener,
                                                             const JobSecret& secret) {
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
    if (pid == 0) {
      setpgid(0, 0);  // so that a terminal's signals do not end it before the ranks
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      const auto server = TcpStoreServer::Create(std::move(listener), secret);
      while (server.ok()) pause();
      _exit(1);
    }
    return std::unique_ptr<StoreProcess>(new StoreProcess(pid));
  }
  ~StoreProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  explicit StoreProcess(pid_t pid) : pid_(pid) {}

  const pid_t pid_;
};

// Returns the variables that tell a rank its number and where the others are.
void AddPlace(const LaunchOptions& options, const JobPlace& job, int local_rank,
              EnvironmentMap* environment) {
  EnvironmentMap& variables = *environment;
  for (const auto& [name, value] : options.environment) variables[name] = value;
  variables["MEGATRON_LAUNCH"] = Name(LaunchSource::kExplicit);
  variables["MEGATRON_RANK"] = absl::StrCat(job.first_rank + local_rank);
  variables["MEGATRON_LOCAL_RANK"] = absl::StrCat(local_rank);
  variables["MEGATRON_WORLD_SIZE"] = absl::StrCat(job.world_size);
  variables["MEGATRON_LOCAL_WORLD_SIZE"] = absl::StrCat(options.ranks);
  variables["MASTER_ADDR"] = job.master_addr;
  variables["MASTER_PORT"] = absl::StrCat(job.master_port);
  variables[kJobSecretVariable] = job.secret.ToHex();
  variables.erase(kStoreListenerVariable);
  variables.erase(kStoreServedVariable);
}

}  // namespace

absl::StatusOr<LaunchResult> LaunchRanks(const LaunchOptions& options) {
  if (options.ranks < 1 || options.command.empty()) {
    return absl::InvalidArgumentError("nothing to launch");
  }
  Socket listener;
  std::optional<JobPlace> job = options.job;
  if (!job.has_value()) {
    MEGATRON_ASSIGN_OR_RETURN(listener, ListenTcp({"127.0.0.1", 0}));
    MEGATRON_ASSIGN_OR_RETURN(const Endpoint master, LocalEndpoint(listener));
    job = JobPlace{0, options.ranks, master.host, master.port, JobSecret::Random()};
  }
  std::unique_ptr<StoreProcess> store;
  if (options.serves_store && listener.valid()) {
    MEGATRON_ASSIGN_OR_RETURN(store, StoreProcess::Start(std::move(listener), job->secret));
  }
  std::vector<Child> children(options.ranks);
  for (int local_rank = 0; local_rank < options.ranks; ++local_rank) {
    Child& child = children[local_rank];
    const int rank = job->first_rank + local_rank;
    child.name = absl::StrCat(kRankName, rank);
    child.prefix = absl::StrCat("[rank ", rank, "] ");
    child.command = options.command;
    child.environment = ProcessEnvironment();
    AddPlace(options, *job, local_rank, &child.environment);
    if (rank == 0 && listener.valid()) {
      child.inherited = listener.fd();
      child.environment[kStoreListenerVariable] = absl::StrCat(listener.fd());
    }
    if (store != nullptr) child.environment[kStoreServedVariable] = "1";
  }
  return RunChildren(std::move(children), options.children);
}

}  // namespace megatron
