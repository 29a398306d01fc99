#include "megatron/comm/launch/tcp_job.h"

#include <fcntl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {

absl::StatusOr<JobSecret> JobSecretFromEnvironment(const EnvironmentMap& environment) {
  const auto value = environment.find(kJobSecretVariable);
  if (value != environment.end()) {
    absl::StatusOr<JobSecret> secret = JobSecret::FromHex(value->second);
    MEGATRON_RETURN_IF_ERROR(secret.status(), _.SetPrepend() << kJobSecretVariable << ": ");
    return secret;
  }
  const auto file = environment.find(kJobSecretFileVariable);
  if (file != environment.end()) return JobSecret::FromFile(file->second);
  return absl::InvalidArgumentError(absl::StrCat(
      "ranks that are several processes know each other by a secret: set ", kJobSecretFileVariable,
      " to a file with 64 hexadecimal digits that only you can "
      "read (openssl rand -hex 32), or ",
      kJobSecretVariable, " to the digits"));
}

namespace {

absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectToStore(const LaunchEnvironment& launch,
                                                               const JobSecret& secret,
                                                               const TcpWorldOptions& options) {
  const Endpoint master = {launch.master_addr, launch.master_port};
  const bool tells = options.on_waiting && (launch.rank == 1 || launch.local_rank == 0);
  const absl::Time deadline = SteadyNow() + options.connect_deadline;
  for (absl::Duration patience = options.first_notice;; patience *= 2) {
    const absl::Duration left = deadline - SteadyNow();
    auto store = TcpStoreClient::Connect(master, secret, std::min(left, patience));
    const absl::StatusCode code = store.status().code();
    const bool is_missing =
        code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
    if (!is_missing || left <= patience) return store;
    if (tells) options.on_waiting({0});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpJob>> TcpJob::Join(const LaunchEnvironment& launch,
                                                     const JobSecret& secret,
                                                     TcpWorldOptions options) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<TcpJob> job, Meet(launch, secret, options));
  MEGATRON_RETURN_IF_ERROR(
      job->MakeWorld(launch.rank, launch.world_size, options.name, options.connect_deadline));
  return job;
}

absl::StatusOr<std::unique_ptr<TcpJob>> TcpJob::Meet(const LaunchEnvironment& launch,
                                                     const JobSecret& secret,
                                                     TcpWorldOptions options) {
  const Endpoint master = {launch.master_addr, launch.master_port};
  std::unique_ptr<TcpJob> job(new TcpJob(secret, options));
  if (launch.rank == 0 && !launch.store_is_served) {
    if (launch.listener >= 0) {
      fcntl(launch.listener, F_SETFD, FD_CLOEXEC);
      MEGATRON_ASSIGN_OR_RETURN(job->server_,
                                TcpStoreServer::Create(Socket(launch.listener), secret));
    } else {
      const bool one_machine = launch.local_world_size == launch.world_size;
      const Endpoint at = {one_machine ? master.host : "0.0.0.0", master.port};
      MEGATRON_ASSIGN_OR_RETURN(job->server_, TcpStoreServer::Create(at, secret));
    }
  }
  MEGATRON_ASSIGN_OR_RETURN(job->store_, ConnectToStore(launch, secret, options));
  job->options_.host = job->store_->local_host();
  return job;
}

absl::Status TcpJob::MakeWorld(int rank, int size, const std::string& name, absl::Duration deadline,
                               std::function<bool()> is_over,
                               const std::function<absl::Status(const TcpWorld&)>& agree) {
  TcpWorldOptions options = options_;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.connect_deadline = deadline;
  options.is_over = std::move(is_over);
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<TcpWorld> world,
                            TcpWorld::Create(store_.get(), secret_, options));
  if (agree) {
    const absl::Status agreed = agree(*world);
    // Else this process would wait for its goodbyes to arrive, also at ranks that are cut off.
    if (!agreed.ok()) world->Abort(agreed);
    MEGATRON_RETURN_IF_ERROR(agreed);
  }
  world_ = std::move(world);
  return absl::OkStatus();
}

}  // namespace megatron
