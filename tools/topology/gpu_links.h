// The table that `nvidia-smi topo -m` prints: how the GPUs and network cards of a machine are
// joined.
#ifndef TOOLS_TOPOLOGY_GPU_LINKS_H_
#define TOOLS_TOPOLOGY_GPU_LINKS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct GpuLinks {
  int gpus = 0, network_cards = 0;
  // The table's word for each pair of GPUs: "NV18", "PIX", "SYS"; "X" on the diagonal.
  std::vector<std::vector<std::string>> between;

  // Returns the largest number of neighbouring GPUs that divides all of them into sets whose
  // members are joined by NVLink; 1 if there is none.
  int Domain() const;
};

// Reads the table; the legend behind it and a terminal's escapes are left out. Returns
// kInvalidArgument with the line of the first error.
absl::StatusOr<GpuLinks> ParseGpuLinks(absl::string_view text);

}  // namespace megatron

#endif  // TOOLS_TOPOLOGY_GPU_LINKS_H_
