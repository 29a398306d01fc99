// Finds which rank of which world a process is, from the variables that its launcher has set.
//
// Sources, the first one that is there counts:
//   explicit    MEGATRON_RANK, MEGATRON_WORLD_SIZE, MEGATRON_LOCAL_RANK, MEGATRON_LOCAL_WORLD_SIZE
//   torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI    OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   PMIx, PMI   PMIX_RANK, PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS, MV2_COMM_WORLD_*
//   Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ... of a step that srun started
//   single      none of these: a world of one
// Two that disagree are an error, unless one only started the other: torchrun under Slurm, where
// Slurm's tasks are torchrun's agents. MEGATRON_LAUNCH=NAME ("slurm", "single", ...) settles it.
//
// MASTER_ADDR and MASTER_PORT count for all sources. Where they are missing the address is this
// machine, if all ranks are on it, or the first node of a Slurm step. Where an agent of torchrun's
// listens at MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), ranks meet at another port, which
// follows from it.
#ifndef MEGATRON_COMM_LAUNCH_LAUNCH_ENV_H_
#define MEGATRON_COMM_LAUNCH_LAUNCH_ENV_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megatron {

// The variable by which LaunchRanks (launcher.h) gives rank 0 the socket at which the job meets.
constexpr char kStoreListenerVariable[] = "MEGATRON_STORE_LISTENER";
// The variable by which LaunchRanks tells ranks that the launcher serves the store, and not rank 0.
constexpr char kStoreServedVariable[] = "MEGATRON_STORE_SERVED";
// The variables by which LaunchWithRestarts (restarts.h) tells ranks of the starts before.
constexpr char kRestartCountVariable[] = "MEGATRON_RESTART_COUNT";
constexpr char kRestartReasonVariable[] = "MEGATRON_RESTART_REASON";

// The variable by which LaunchOnHosts (host_launcher.h) tells ranks the name of their machine.
constexpr char kHostVariable[] = "MEGATRON_HOST";

// The variable by which LaunchRanks tells when it began, in milliseconds since 1970.
constexpr char kLaunchTimeVariable[] = "MEGATRON_LAUNCH_TIME";

enum class LaunchSource { kExplicit, kTorchrun, kOpenMpi, kPmi, kSlurm, kSingle };

const char* Name(
    LaunchSource source);  // "explicit", "torchrun", "openmpi", "pmi", "slurm", "single"

struct LaunchEnvironment {
  LaunchSource source = LaunchSource::kSingle;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::vector<LaunchSource> also;  // other sources that are there
  // A socket that listens at the master's address already, which rank 0 has inherited; -1: none.
  int listener = -1;
  bool store_is_served = false;  // the launcher serves the job's store; else rank 0 does
  std::string host;  // this machine's name in the launcher's hostfile; empty: there is none
  // How often the job was started again before this start, and why the last time, as far as the
  // launcher says so: MEGATRON_RESTART_COUNT and MEGATRON_RESTART_REASON (restarts.h),
  // TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT.
  int restarts = 0;
  std::string restart_reason;
  // When all ranks were started, also where this one is a replacement, as far as the launcher says
  // so: MEGATRON_LAUNCH_TIME.
  std::optional<absl::Time> launch_time;

  // Returns "rank 3 of 8 (local rank 1 of 2), rendezvous at node01:29500, from torchrun's
  // variables; Slurm's variables are set, too".
  std::string Describe() const;
};

using EnvironmentMap = std::map<std::string, std::string>;

// Errors name the variables and their values.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const EnvironmentMap& environment);

// Returns the environment of this process.
EnvironmentMap ProcessEnvironment();

// The nodes of Slurm's short form: "gpu[01-03,7]-a,login" is gpu01-a, gpu02-a, gpu03-a, gpu7-a,
// login. At most 100,000.
absl::StatusOr<std::vector<std::string>> ExpandSlurmNodes(absl::string_view list);
// Tasks of one node in Slurm's short form: node 3 of "2(x3),1" has 1.
absl::StatusOr<int> SlurmTasksOfNode(absl::string_view tasks_per_node, int node);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_LAUNCH_ENV_H_
