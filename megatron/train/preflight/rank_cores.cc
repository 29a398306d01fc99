#include "megatron/train/preflight/rank_cores.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/preflight/device_links.h"

namespace megatron {

absl::StatusOr<std::vector<CoreShare>> CoresOfRanks(DeviceType device, int ranks,
                                                    absl::Span<const int> allowed) {
  constexpr char kSys[] = "/sys";
  MEGATRON_ASSIGN_OR_RETURN(const CoreTopology machine, ReadCoreTopology(kSys, allowed));
  std::vector<std::optional<int>> nearest(static_cast<size_t>(ranks));
  if (device == DeviceType::kCuda) {
    for (int rank = 0; rank < ranks; ++rank)
      nearest[rank] = NodeOfPciDevice(kSys, CudaPciBusId(DeviceOfRank(rank)));
  }
  std::vector<CoreShare> shares;
  for (int rank = 0; rank < ranks; ++rank) shares.push_back(ShareOfRank(machine, nearest, rank));
  return shares;
}

std::string DescribeCores(const CoreShare& share) {
  return absl::StrCat(NumberList(share.threads), " of node ", share.node);
}

}  // namespace megatron
