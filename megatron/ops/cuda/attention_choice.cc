// Attention on a CUDA device: by cuDNN if it is chosen and supports the call, else by our own
// kernels.
#include "megatron/ops/attention.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace {

bool AsksForCudnn(const Attention& attention) {
  return attention.kernel == AttentionKernel::kCudnn ||
         attention.kernel == AttentionKernel::kCudnnDeterministic;
}

}  // namespace

void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRD, const Tensor& lse_TGR) {
  if (AsksForCudnn(attention) && RunCudnnAttention(stream, {attention, in, out_TGRD, lse_TGR})) {
    return;
  }
  OwnAttentionForward(stream, attention, in, out_TGRD, lse_TGR);
}

void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRD, const Tensor& lse_TGR, const Tensor& dout_TGRD,
                       const AttentionInputs& gradients) {
  if (AsksForCudnn(attention) &&
      RunCudnnAttention(stream, {attention, in, out_TGRD, lse_TGR, dout_TGRD, gradients})) {
    return;
  }
  OwnAttentionBackward(stream, attention, in, out_TGRD, lse_TGR, dout_TGRD, gradients);
}

MEGATRON_CUDA_KERNEL(AttentionForward);
MEGATRON_CUDA_KERNEL(AttentionBackward);

}  // namespace megatron::ops::cuda
