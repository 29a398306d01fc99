// Everything that a process started by a launcher needs to communicate with the other ranks: the
// job's store, which rank 0 serves, and a world of all ranks.
//
//   auto launch = ReadLaunchEnvironment(ProcessEnvironment());
//   auto secret = JobSecretFromEnvironment(ProcessEnvironment());
//   auto job = TcpJob::Join(*launch, *secret);
//   ProcessGroup world((*job)->world().communicator());
#ifndef MEGATRON_COMM_LAUNCH_TCP_JOB_H_
#define MEGATRON_COMM_LAUNCH_TCP_JOB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/store/tcp_store.h"
#include "megatron/comm/tcp/tcp_communicator.h"

namespace megatron {

// Reads the secret from MEGATRON_JOB_SECRET or the file MEGATRON_JOB_SECRET_FILE.
absl::StatusOr<JobSecret> JobSecretFromEnvironment(const EnvironmentMap& environment);

class TcpJob {
 public:
  // All of `options` but rank, size and host, which follow from the launch. Rank 0 listens at the
  // master's address if all ranks are on one machine, else on all interfaces. While that is missing
  // rank 1 and the first rank of each machine tell options.on_waiting so.
  static absl::StatusOr<std::unique_ptr<TcpJob>> Join(const LaunchEnvironment& launch,
                                                      const JobSecret& secret,
                                                      TcpWorldOptions options = {});

  TcpWorld& world() { return *world_; }
  // Usable until rank 0 has left.
  Store& store() { return *store_; }

 private:
  TcpJob() = default;

  std::unique_ptr<TcpStoreServer> server_;  // set on rank 0 only
  std::unique_ptr<TcpStoreClient> store_;
  std::unique_ptr<TcpWorld> world_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_TCP_JOB_H_
