// The cores of a machine, and how the ranks on it share them out.
//
//   MEGATRON_ASSIGN_OR_RETURN(CoreTopology machine, ReadCoreTopology("/sys", AllowedThreads()));
//   const CoreShare share = ShareOfRank(machine, nodes_of_ranks, rank);
//   MEGATRON_RETURN_IF_ERROR(BindThisThread(share.threads));
//
// A NUMA node has cores and the memory nearest to them. A thread takes memory of its core's node,
// where Linux's rules have not been changed, and threads begin on the cores of the thread that
// makes them. So a rank whose first thread is bound computes, and updates what is offloaded, on its
// cores, with memory of their node.
#ifndef MEGATRON_BASE_CORE_BINDING_H_
#define MEGATRON_BASE_CORE_BINDING_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

struct CoreTopology {
  // A core with the numbers of its hardware threads, ascending.
  using Core = std::vector<int>;
  struct Node {
    int number = 0;
    std::vector<Core> cores;
  };
  std::vector<Node> nodes;  // those with cores; ascending
};

// The hardware threads that a rank runs on, ascending, and their node.
struct CoreShare {
  int node = 0;
  std::vector<int> threads;
};

// Parses a list of numbers as Linux writes it, such as "0-3,8\n": ascending, without repetition,
// and less than 8192. An empty list is one.
absl::StatusOr<std::vector<int>> ParseNumberList(absl::string_view text);

// Reads what /sys, which lies in the folder `sys`, says of the hardware threads `allowed`. A
// machine whose kernel knows no nodes is one node, and a thread whose core is not told is a core.
// Fails where a file is there and not as Linux writes it, or where no node has an allowed thread.
absl::StatusOr<CoreTopology> ReadCoreTopology(const std::string& sys,
                                              absl::Span<const int> allowed);

// Returns the node nearest to a device on the PCI bus, such as "0000:3B:00.0"; nothing where /sys
// does not say one.
std::optional<int> NodeOfPciDevice(const std::string& sys, absl::string_view bus_id);

// Returns the share of a rank of this machine. `nearest` has for each rank the node nearest to its
// GPU, where there is one. A rank with none, or with one that has no cores, gets a node by its
// number: ranks that stand one behind the other share a node. The ranks of a node share its whole
// cores out evenly; where there are fewer cores than ranks, each has all of them.
CoreShare ShareOfRank(const CoreTopology& machine, absl::Span<const std::optional<int>> nearest,
                      int rank);

// The hardware threads on which this thread may run, ascending.
std::vector<int> AllowedThreads();
// Lets this thread, and those that it makes from now on, run on these hardware threads alone.
absl::Status BindThisThread(absl::Span<const int> threads);

// Returns the numbers as Linux writes a list: "0-3,8".
std::string NumberList(absl::Span<const int> ascending);

}  // namespace megatron

#endif  // MEGATRON_BASE_CORE_BINDING_H_
