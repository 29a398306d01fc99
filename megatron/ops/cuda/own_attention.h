// Attention by the kernels of this folder, which take any call.
#ifndef MEGATRON_OPS_CUDA_OWN_ATTENTION_H_
#define MEGATRON_OPS_CUDA_OWN_ATTENTION_H_

#include "megatron/ops/attention.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

void OwnAttentionForward(const Stream& stream, const Attention& attention,
                         const AttentionInputs& in, const Tensor& out_TGRD, const Tensor& lse_TGR);
void OwnAttentionBackward(const Stream& stream, const Attention& attention,
                          const AttentionInputs& in, const Tensor& out_TGRD, const Tensor& lse_TGR,
                          const Tensor& dout_TGRD, const AttentionInputs& gradients);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_OWN_ATTENTION_H_
