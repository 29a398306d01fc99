// Numbers of items that differ from rank to rank, exchanged before the items are.
#ifndef MEGATRON_OPTIM_COMPRESSION_GATHERED_COUNTS_H_
#define MEGATRON_OPTIM_COMPRESSION_GATHERED_COUNTS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct GatheredCounts {
  absl::Span<const int32_t> of_rank;  // empty: they could not be exchanged, or the stream is meta
  int64_t most = 0;
};

// Returns the numbers of all ranks of the group, of which `own` is this rank's. They lie in
// `counts_R`, int32 on the CPU, with an element for each rank.
GatheredCounts GatherCounts(int64_t own, const Tensor& counts_R, const ProcessGroup& group,
                            const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_GATHERED_COUNTS_H_
