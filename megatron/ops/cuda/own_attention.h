// Attention without cuDNN: the kernels of this folder, which take any call, and those of hopper/.
#ifndef MEGATRON_OPS_CUDA_OWN_ATTENTION_H_
#define MEGATRON_OPS_CUDA_OWN_ATTENTION_H_

#include "megatron/ops/attention.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

// Returns whether the current device and this build have what the kernels for Hopper need: compute
// capability 9.0 and code for sm_90a.
bool HopperAttentionIsAvailable();

// Compute the call with `kernel`: kOwn or kHopper. Return false, having enqueued nothing, if the
// kernels for Hopper do not support the call or are not available.
bool OwnAttentionForward(AttentionKernel kernel, const Stream& stream, const Attention& attention,
                         const AttentionInputs& in, const Tensor& out_TGRD, const Tensor& lse_TGR);
bool OwnAttentionBackward(AttentionKernel kernel, const Stream& stream, const Attention& attention,
                          const AttentionInputs& in, const Tensor& out_TGRD, const Tensor& lse_TGR,
                          const Tensor& dout_TGRD, const AttentionInputs& gradients);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_OWN_ATTENTION_H_
