#include "megatron/comm/launch/launcher.h"

#include <signal.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// Returns the variables that tell a rank its number and where the others are.
void AddPlace(const LaunchOptions& options, const JobPlace& job, int local_rank,
              absl::Time launched, EnvironmentMap* environment) {
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
  variables[kLaunchTimeVariable] = absl::StrCat(absl::ToUnixMillis(launched));
  variables.erase(kStoreListenerVariable);
  variables.erase(kStoreServedVariable);
  if (options.serves_store) variables[kStoreServedVariable] = "1";
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeStore(Socket listener,
                                                           const JobSecret& secret) {
  sigset_t all, before;
  sigfillset(&all);
  PCHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  auto server = TcpStoreServer::Create(std::move(listener), secret);
  PCHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  return server;
}

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
  std::unique_ptr<TcpStoreServer> store;
  if (options.serves_store && listener.valid()) {
    MEGATRON_ASSIGN_OR_RETURN(store, ServeStore(std::move(listener), job->secret));
  }
  const absl::Time launched = absl::Now();
  std::vector<Child> children(options.ranks);
  for (int local_rank = 0; local_rank < options.ranks; ++local_rank) {
    Child& child = children[local_rank];
    const int rank = job->first_rank + local_rank;
    child.name = absl::StrCat(kRankName, rank);
    child.prefix = absl::StrCat("[rank ", rank, "] ");
    child.command = options.command;
    child.environment = ProcessEnvironment();
    AddPlace(options, *job, local_rank, launched, &child.environment);
    if (rank == 0 && listener.valid()) {
      child.inherited = listener.fd();
      child.environment[kStoreListenerVariable] = absl::StrCat(listener.fd());
    }
  }
  return RunChildren(std::move(children), options.children);
}

}  // namespace megatron
