// Finds the shape of the machines that ranks run on: host names group ranks into nodes, messages
// between some pairs of ranks are timed.
#ifndef TOOLS_TOPOLOGY_PROBE_H_
#define TOOLS_TOPOLOGY_PROBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/train/topology/topology_file.h"
#include "tools/topology/gpu_links.h"

namespace megatron {

// What a rank knows of its machine.
struct ProbedHost {
  std::string name;
  std::optional<GpuLinks> links;  // its GPUs' links; the first rank of a machine knows them
};

// Messages of a pair, both ways at once.
struct PairTimes {
  int a = 0, b = 0;
  double gb_per_s = 0;      // one way's rate
  double microseconds = 0;  // the time of a message of 8 bytes
};

// Returns nodes and domains without speeds. Each rank gives its host. Collective over `ranks`,
// which takes tensors in host memory. Returns kFailedPrecondition if ranks of a host are no
// neighbours.
absl::StatusOr<MachineShape> GroupByHost(const ProbedHost& host, const ProcessGroup& ranks);

// Returns all pairs of few ranks. Of many: those of the first rank on its node, of neighbours on
// each node, of equal places on the first two nodes, and of the first ranks of nodes; at most 16 of
// each kind.
std::vector<std::pair<int, int>> PairsToTime(const MachineShape& shape);

// Times each pair while the others wait. Collective over `world`; `host` has the same ranks and
// takes tensors in host memory. Every rank gets all times.
absl::StatusOr<std::vector<PairTimes>> TimePairs(const std::vector<std::pair<int, int>>& pairs,
                                                 int64_t bytes, const ProcessGroup& host,
                                                 const ProcessGroup& world, const Stream& stream);

// Sets each speed to the median of the pairs that cross such links.
void SetSpeeds(const std::vector<PairTimes>& times, MachineShape* shape);

// Returns a table of the timed ranks: GB/s above the diagonal, microseconds below.
std::string FormatPairs(const std::vector<PairTimes>& times);

}  // namespace megatron

#endif  // TOOLS_TOPOLOGY_PROBE_H_
