// The packed sequences as a part of their tokens sees them.
#ifndef MEGATRON_OPS_SEQUENCE_PART_H_
#define MEGATRON_OPS_SEQUENCE_PART_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Writes where the tokens [begin, end) of each packed sequence begin, counted from `begin` (a
// sequence without such tokens is empty), and the place of each of these tokens in its sequence.
// All tensors are int32 and contiguous; cu_seqlens and part_cu_seqlens have the same length, and
// place has end - begin elements.
void PartOfSequences(const Stream& stream, const Tensor& cu_seqlens, int64_t begin, int64_t end,
                     const Tensor& part_cu_seqlens, const Tensor& place_T);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_SEQUENCE_PART_H_
