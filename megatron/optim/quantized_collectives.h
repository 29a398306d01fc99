// Collectives that send elements as codes of few bits (ops/group_codes.h), for flat tensors. Their
// messages lie in `scratch`, bytes on the tensors' device.
#ifndef MEGATRON_OPTIM_QUANTIZED_COLLECTIVES_H_
#define MEGATRON_OPTIM_QUANTIZED_COLLECTIVES_H_

#include <cstdint>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The bytes of scratch for shards of so many elements.
int64_t QuantizedAllGatherScratch(int64_t shard, int ranks);
int64_t QuantizedReduceScatterScratch(int64_t shard, int ranks);

// out = the shards of all ranks as they are received, with codes of 8 bits. This rank's own shard
// is rounded like the others, so that every rank gets the same bits.
void QuantizedAllGather(const Tensor& shard, const Tensor& out, const Tensor& scratch,
                        const ProcessGroup& group, const Stream& stream);

// This rank's shard of `whole`, which is fp32, becomes the sum of those of all ranks; the other
// elements are undefined then. With hosts, summands are exchanged within a host, summed, and the
// sums are exchanged across hosts and summed. Codes of 4 bits are sent, this rank's own summands
// among them, so each hop rounds once. Sums are in fp32 and in the order of ranks. `shards` are all
// ranks; `host` and `across_hosts` those of this rank's host and those in the same place of every
// host, or default groups.
void QuantizedReduceScatter(const Tensor& whole, const Tensor& scratch, const ProcessGroup& shards,
                            const ProcessGroup& host, const ProcessGroup& across_hosts,
                            const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_QUANTIZED_COLLECTIVES_H_
