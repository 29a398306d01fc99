// Attention without cuDNN: the kernels of this folder, which take any call, and those of hopper/.
// All kernels leave out the sinks.
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
                         const AttentionInputs& in, const Tensor& out_TGRE, const Tensor& lse_TGR);
bool OwnAttentionBackward(AttentionKernel kernel, const Stream& stream, const Attention& attention,
                          const AttentionInputs& in, const Tensor& out_TGRE, const Tensor& lse_TGR,
                          const Tensor& dout_TGRE, const AttentionInputs& gradients);

// Make of out and lse, which were computed without sinks, those with sinks.
void AddSinks(const Stream& stream, const Tensor& sink_N, const Tensor& out_TGRE,
              const Tensor& lse_TGR);
// dsink (fp32) += the gradient, from what AddSinks made.
void AddSinkGradients(const Stream& stream, const Tensor& sink_N, const Tensor& out_TGRE,
                      const Tensor& lse_TGR, const Tensor& dout_TGRE, const Tensor& dsink_N);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_OWN_ATTENTION_H_
