// The choice among a device's kernels for attention.
#ifndef MEGATRON_OPS_ATTENTION_KERNEL_H_
#define MEGATRON_OPS_ATTENTION_KERNEL_H_

namespace megatron::ops {

// The kernels of a CUDA device. The CPU has one kernel and ignores this.
enum class AttentionKernel {
  kOwn,                 // our own for any call on any device (cuda)
  kHopper,              // our own for compute capability 9.0 (cuda/hopper)
  kCudnn,               // cuDNN's (cuda/cudnn)
  kCudnnDeterministic,  // kCudnn with gradients of the same bits in every run; takes more memory
};

// The kernels that are tried for a call, in this order; kOwn computes what neither supports.
struct AttentionKernels {
  AttentionKernel first = AttentionKernel::kOwn, second = AttentionKernel::kOwn;

  bool Has(AttentionKernel kernel) const { return first == kernel || second == kernel; }
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ATTENTION_KERNEL_H_
