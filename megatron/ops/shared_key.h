// Keys of which one part is that of a head and the other that of all heads, as multi-head latent
// attention has them.
//
// Legend: T tokens, N heads, O width of a head's own part, S of the shared part.
#ifndef MEGATRON_OPS_SHARED_KEY_H_
#define MEGATRON_OPS_SHARED_KEY_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The tensors share a floating dtype, and their last dims are contiguous.

// Writes the keys: of each head its own part, then the shared one. key is [T, N, O + S].
void JoinSharedKey(const Stream& stream, const Tensor& own_TNO, const Tensor& shared_TS,
                   const Tensor& key_TN);

// Writes the gradients of both parts from those of the keys. That of the shared part is summed over
// the heads, in their order, in fp32.
void SplitSharedKey(const Stream& stream, const Tensor& dkey_TN, const Tensor& down_TNO,
                    const Tensor& dshared_TS);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_SHARED_KEY_H_
