#include "megatron/optim/compression/gathered_counts.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {

GatheredCounts GatherCounts(int64_t own, const Tensor& counts_R, const ProcessGroup& group,
                            const Stream& stream) {
  CHECK_EQ(counts_R.numel(), group.size());
  const Tensor mine = counts_R.Slice(0, group.rank(), group.rank() + 1);
  if (!stream.is_meta()) *mine.data<int32_t>() = static_cast<int32_t>(own);
  group.AllGather(mine, counts_R, stream);
  if (stream.is_meta() || !group.status().ok()) return {};
  GatheredCounts counts;
  counts.of_rank = absl::MakeConstSpan(counts_R.data<int32_t>(), group.size());
  counts.most = *std::max_element(counts.of_rank.begin(), counts.of_rank.end());
  return counts;
}

}  // namespace megatron
