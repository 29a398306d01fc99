// Ranks of a run that are processes: starting them on this machine, and joining them wherever a
// launcher has started them.
#ifndef MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_
#define MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Starts this program with these arguments once for each rank, passes on what they print and the
// signals that come, and returns the run's exit code when all have ended. They leave together:
// whoever then stays behind and does nothing for `options.stuck_timeout` is named and ended; zero:
// never. So is a rank that is stopped, if the others have not done so long after they could, as
// before they have met. A run that lost a rank is started again up to `options.restarts` times.
//
// With `options.min_data_size`, places whose rank failed twice are left out: the ranks get the
// greatest data_parallel_size, from that one on, that `fits` and for which there are places, as an
// argument. `data_size` is the configuration's, which `ranks` are. Where none fits, all are started.
//
// This process may have no other thread.
int StartRanks(int ranks, int64_t data_size, const std::vector<std::string>& arguments,
               const RanksOptions& options, absl::FunctionRef<bool(int64_t data_size)> fits);

// Returns when all ranks have found each other. Errors carry an exit code.
absl::StatusOr<std::unique_ptr<TcpJob>> JoinRanks(const LaunchEnvironment& launch,
                                                  const RanksOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_
