// The choices of tokens by host, for experts of which each host has a run of equal length: host q
// has experts [q L, (q + 1) L).
//
// Legend: T tokens, K choices per token, L experts per host. Experts and hosts are int32, -1 for
// choices that are dropped or elsewhere; probabilities are fp32. All tensors are contiguous.
#ifndef MEGATRON_OPS_MOE_HOST_CHOICES_H_
#define MEGATRON_OPS_MOE_HOST_CHOICES_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// host (=): the host of the expert of each choice that is the token's first one there; -1 for all
// others. So each token has each of its hosts once.
void FirstChoiceOfHost(const Stream& stream, const Tensor& expert_TK, int64_t experts_per_host,
                       const Tensor& host_TK);

// packed (=, fp32 [T, 2 K]): the numbers of a token's experts, which must be below 2^24, and then
// their probabilities: a row of numbers that can travel beside the token's own row.
void PackChoices(const Stream& stream, const Tensor& expert_TK, const Tensor& probability_TK,
                 const Tensor& packed_TC);
// Takes them apart on the host of experts [first, first + experts_per_host): expert (=) counts from
// `first`, and is -1 for choices elsewhere; probability (=) is as packed.
void UnpackChoices(const Stream& stream, const Tensor& packed_TC, int64_t first,
                   int64_t experts_per_host, const Tensor& expert_TK, const Tensor& probability_TK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_HOST_CHOICES_H_
