// Optimizer updates over flat memory: one pass over a range that holds many parameters.
//
// Legend: N elements. All tensors are contiguous and fp32, but for AdamW's tensors and for `out`,
// which is the model's copy of the weights in its own dtype, and is empty when the model uses the
// master weights. Elements outside every segment (alignment gaps) stay as they are.
#ifndef MEGATRON_OPS_OPTIMIZER_H_
#define MEGATRON_OPS_OPTIMIZER_H_

#include "absl/types/span.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Elements [begin, end), which share hyperparameters.
struct OptimizerSegment {
  int64_t begin = 0, end = 0;
  float lr = 0;
  float weight_decay = 0;
  float epsilon_factor = 1;  // multiplies the epsilon of AdamWUpdate; other updates do not read it
};

// Decoupled weight decay (I. Loshchilov, F. Hutter, arXiv 1711.05101):
//   g = grad_scale * grad; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2
//   w = w - lr * decay * w - lr * (m / c1) / (sqrt(v / c2) + epsilon)
// with c1 = 1 - b1^step, c2 = 1 - b2^step. The betas are double since 1 - b2 is needed to fp32.
// m and v are fp32, bf16 or kUInt8, each by itself. The latter are codes of FirstMoment8 and
// SecondMoment8; they and bf16 are rounded by chance (adamw_element.h). master is fp32 or, where
// out is bf16, the remainders of fp32 masters whose weights are in out (kUInt16).
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999;
  float epsilon = 1e-8f;
  int64_t step = 1;             // counted from 1
  float grad_scale = 1;         // unscaling and clipping
  bool bias_correction = true;  // false: c1 and c2 are 1
};
void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N, const Tensor& out_N);

// out = the fp32 masters of which `weight`, in bf16, and `remainder` (kUInt16) are the parts.
void JoinMasters(const Stream& stream, const Tensor& weight_N, const Tensor& remainder_N,
                 const Tensor& out_N);

// torch.optim.SGD without dampening:
//   g = grad_scale * grad + decay * w; buffer = momentum * buffer + g; w -= lr * buffer
// `buffer` is empty when momentum is 0.
struct SgdOptions {
  float momentum = 0;
  float grad_scale = 1;
};
void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N);

// Lion (X. Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675), with
// decoupled weight decay: g = grad_scale * grad; c = b1 m + (1 - b1) g
//   w = w - lr * decay * w - lr * sign(c); m = b2 m + (1 - b2) g
// where sign(0) is 0. The betas are double since 1 - b2 is needed to fp32.
struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;
  float grad_scale = 1;  // unscaling and clipping
};
void LionUpdate(const Stream& stream, const LionOptions& options,
                absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                const Tensor& m_N, const Tensor& master_N, const Tensor& out_N);

// out[0] += the sum of squares of scale * x, out[1] = 1 if an element of x is not finite, else as
// it was; out is fp32 [2]. Summed over fixed tiles in a fixed order.
void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2);

// out[0] += the number of zeros in x (fp32); out is int64 [1].
void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_OPTIMIZER_H_
