// Where local checkpoints lie: in a directory that each machine has for itself, in memory or on a
// disk of its own.
//
// *Machines* are told apart by that directory alone: ranks that see each other's files there are on
// one machine. So a directory that all machines share makes them one.
#ifndef MEGATRON_CHECKPOINT_LOCAL_LOCAL_PLACE_H_
#define MEGATRON_CHECKPOINT_LOCAL_LOCAL_PLACE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// The function by which ranks agree, as SaveOptions::agree; null for a single rank.
using Agreement = std::function<absl::Status(absl::Status)>;

struct LocalPlace {
  std::string directory;  // one run's, on this rank's machine; empty: there is none
  std::string start;      // names this start of the run; files of two starts are not mixed
  // The machine of each rank, named by the lowest rank on it.
  std::vector<int> machines;
};

// Creates the directory and finds which ranks share it. All ranks call it.
absl::StatusOr<LocalPlace> FindMachines(FileSystem& fs, const std::string& directory,
                                        const std::string& start, const ProcessGroup& ranks,
                                        const Agreement& agree);

// Returns the machines, ascending, each once.
std::vector<int> DistinctMachines(const std::vector<int>& machines);
// Returns the ranks of a machine, ascending.
std::vector<int> RanksOn(const std::vector<int>& machines, int machine);
// Returns the rank that keeps copy number `copy`, from 1 on, of what `rank` has written: on the
// copy-th machine behind its own, at the same place there. There are more machines than `copy`.
int KeeperOf(const std::vector<int>& machines, int rank, int copy);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_LOCAL_LOCAL_PLACE_H_
