// The choice among a device's kernels for attention.
#ifndef MEGATRON_OPS_ATTENTION_KERNEL_H_
#define MEGATRON_OPS_ATTENTION_KERNEL_H_

namespace megatron::ops {

// The kernels of a CUDA device. The CPU has one kernel and ignores this.
enum class AttentionKernel {
  kOwn,
  kHopper,  // cuda/hopper, for compute capability 9.0, if it supports the call; else kOwn
  kCudnn,   // cuDNN (cuda/cudnn), if it supports the call; else kOwn
  kCudnnDeterministic,  // kCudnn with gradients of the same bits in every run; takes more memory
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ATTENTION_KERNEL_H_
