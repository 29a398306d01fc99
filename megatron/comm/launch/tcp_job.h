// Everything that a process started by a launcher needs to communicate with the other ranks: the
// job's store, which rank 0 or the launcher serves, and a world of all ranks.
//
//   auto launch = ReadLaunchEnvironment(ProcessEnvironment());
//   auto secret = JobSecretFromEnvironment(ProcessEnvironment());
//   auto job = TcpJob::Join(*launch, *secret);
//   ProcessGroup world((*job)->world().communicator());
#ifndef MEGATRON_COMM_LAUNCH_TCP_JOB_H_
#define MEGATRON_COMM_LAUNCH_TCP_JOB_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  // The same without a world: the process only reaches the store.
  static absl::StatusOr<std::unique_ptr<TcpJob>> Meet(const LaunchEnvironment& launch,
                                                      const JobSecret& secret,
                                                      TcpWorldOptions options = {});

  // Makes a world of `size` processes, of which this one is `rank`. All of them give the same name,
  // which no other world of the job has. The new world takes the place of the one before, which
  // this process leaves then; after an error it stays. `is_over` is TcpWorldOptions'. `agree` is
  // called with the new world, while there is the one before, and may refuse it: its error is
  // returned, and ends the new world on all ranks.
  absl::Status MakeWorld(int rank, int size, const std::string& name, absl::Duration deadline,
                         std::function<bool()> is_over = nullptr,
                         const std::function<absl::Status(const TcpWorld&)>& agree = nullptr);

  TcpWorld& world() { return *world_; }
  bool has_world() const { return world_ != nullptr; }
  // Usable until the process that serves it has ended.
  Store& store() { return *store_; }

 private:
  TcpJob(const JobSecret& secret, TcpWorldOptions options)
      : secret_(secret), options_(std::move(options)) {}

  const JobSecret secret_;
  TcpWorldOptions options_;
  std::unique_ptr<TcpStoreServer> server_;  // set on rank 0 only, unless the launcher serves
  std::unique_ptr<TcpStoreClient> store_;
  std::unique_ptr<TcpWorld> world_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_TCP_JOB_H_
