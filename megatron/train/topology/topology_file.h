// The machine's shape: which ranks are on which node, which of them fast links join, and how fast
// links are.
//
//   node { host: "gpu01" ranks: 8 rails: 8 }
//   node { host: "gpu02" ranks: 8 rails: 8 }
//   domain_gb_per_s: 300
//   rail_gb_per_s: 48
#ifndef MEGATRON_TRAIN_TOPOLOGY_TOPOLOGY_FILE_H_
#define MEGATRON_TRAIN_TOPOLOGY_TOPOLOGY_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct MachineShape {
  struct Node {
    std::string host;
    int64_t ranks = 1;
    int64_t rails = 1;
  };
  std::vector<Node> nodes;  // in the order of ranks; at least one
  int64_t domain = 1;
  // 0 where there are no such links: between the domains of a node, and between nodes.
  double domain_gb_per_s = 0, node_gb_per_s = 0, rail_gb_per_s = 0;

  int64_t ranks() const;
  // Returns the number of neighbouring ranks that reach each other without a network card: a node,
  // or a domain of several nodes.
  int64_t reach() const;
};

// Reads topology.proto as text. Nodes may differ. Returns kInvalidArgument with the place of the
// first error, or with the field that is missing or has an impossible value.
absl::StatusOr<MachineShape> ParseTopology(absl::string_view text);

// Returns the text of the file; ParseTopology reads the same shape from it.
std::string FormatTopology(const MachineShape& shape);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TOPOLOGY_TOPOLOGY_FILE_H_
