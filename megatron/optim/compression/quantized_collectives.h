// Collectives that send elements as codes of few bits (ops/compression/group_codes.h), for flat
// tensors. Their messages lie in `scratch`, bytes on the tensors' device.
#ifndef MEGATRON_OPTIM_COMPRESSION_QUANTIZED_COLLECTIVES_H_
#define MEGATRON_OPTIM_COMPRESSION_QUANTIZED_COLLECTIVES_H_

#include <cstdint>

#include "megatron/comm/process_group.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The bytes of scratch for shards of so many elements.
int64_t QuantizedAllGatherScratch(int64_t shard, int ranks);
int64_t QuantizedReduceScatterScratch(ops::CodeBits bits, int64_t shard, int ranks);

// out = the shards of all ranks as they are received, with codes of 8 bits. This rank's own shard
// is rounded like the others, so that every rank gets the same bits. `error` feeds roundings of an
// fp32 shard back, as below; the shard may lie in `out`.
void QuantizedAllGather(const Tensor& shard, const Tensor& error, const Tensor& out,
                        const Tensor& scratch, const ProcessGroup& group, const Stream& stream);

// This rank's shard of `whole`, which is fp32, becomes the sum of those of all ranks; the other
// elements are undefined then. Codes of `bits` are sent, this rank's own summands among them, and
// their values are summed in fp32, in the order of ranks. `error`, which is fp32 and as long as
// `whole`, feeds roundings back: it is added to the summands, and then is what their rounding took
// off. It may be empty.
void QuantizedReduceScatter(ops::CodeBits bits, const Tensor& whole, const Tensor& error,
                            const Tensor& scratch, const ProcessGroup& group, const Stream& stream);

// The same with codes of 4 bits and without feedback, in two hops. With hosts, summands are
// exchanged within a host, summed, and the sums are exchanged across hosts and summed, so each hop
// rounds once. `shards` are all ranks; `host` and `across_hosts` those of this rank's host and
// those in the same place of every host, or default groups.
void QuantizedReduceScatter(const Tensor& whole, const Tensor& scratch, const ProcessGroup& shards,
                            const ProcessGroup& host, const ProcessGroup& across_hosts,
                            const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_QUANTIZED_COLLECTIVES_H_
