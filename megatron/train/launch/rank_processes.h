// Starts the ranks of a run that are processes of this machine.
#ifndef MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_
#define MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
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
// argument. `data_size` is the configuration's, which `ranks` are. Where none fits, all are
// started.
//
// With `options.in_process_recovery` single lost ranks are started again beside the others, up to
// `options.replacements` times in each start of all.
//
// This process may have no other thread.
int StartRanks(int ranks, int64_t data_size, const std::vector<std::string>& arguments,
               const RanksOptions& options, absl::FunctionRef<bool(int64_t data_size)> fits);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAUNCH_RANK_PROCESSES_H_
