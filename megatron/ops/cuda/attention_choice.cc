// Attention on a CUDA device, by the first of the chosen kernels that supports the call; sinks are
// added to its result.
#include <initializer_list>

#include "megatron/ops/attention.h"
#include "megatron/ops/cuda/cudnn/attention_call.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace {

// Returns false, having enqueued nothing, if the kernel does not support the call.
bool RunWith(AttentionKernel kernel, const Stream& stream, const AttentionCall& call) {
  if (kernel == AttentionKernel::kCudnn || kernel == AttentionKernel::kCudnnDeterministic)
    return RunCudnnAttention(stream, call);
  if (!call.backward()) {
    return OwnAttentionForward(kernel, stream, call.attention, call.in, call.out_TGRE,
                               call.lse_TGR);
  }
  return OwnAttentionBackward(kernel, stream, call.attention, call.in, call.out_TGRE, call.lse_TGR,
                              call.dout_TGRE, call.gradients);
}

void Run(const Stream& stream, const AttentionCall& call) {
  if (call.attention.largest_scores_N && !call.backward()) {
    RunWith(AttentionKernel::kOwn, stream, call);
    return;
  }
  const AttentionKernels& kernels = call.attention.kernels;
  for (AttentionKernel kernel : {kernels.first, kernels.second, AttentionKernel::kOwn}) {
    if (RunWith(kernel, stream, call)) return;
  }
}

}  // namespace

void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRE, const Tensor& lse_TGR) {
  Run(stream, {attention, in, out_TGRE, lse_TGR});
  if (in.sink_N) AddSinks(stream, in.sink_N, out_TGRE, lse_TGR);
}

void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRE, const Tensor& lse_TGR, const Tensor& dout_TGRE,
                       const AttentionInputs& gradients) {
  Run(stream, {attention, in, out_TGRE, lse_TGR, dout_TGRE, gradients});
  if (in.sink_N && gradients.sink_N)
    AddSinkGradients(stream, in.sink_N, out_TGRE, lse_TGR, dout_TGRE, gradients.sink_N);
}

MEGATRON_CUDA_KERNEL(AttentionForward);
MEGATRON_CUDA_KERNEL(AttentionBackward);
MEGATRON_CUDA_KERNEL(HopperAttentionIsAvailable);

}  // namespace megatron::ops::cuda
