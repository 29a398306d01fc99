// Dropout whose mask depends only on an element's place in the model and the data, and the residual
// sum that it is fused with.
//
// Whether an element is dropped is a function of (key, sample number, position in the sample,
// column in the *global* row). The random word of column c is word (c % 4) of Philox(key; {sample
// low, sample high, position, c / 4}). The element is kept if that word >= probability * 2^32
// (rounded down), and is then scaled by 1 / (1 - probability). So a run has the same masks on any
// layout, and the backward pass needs no saved mask.
//
// Legend: T tokens, H columns. Activations are fp32, bf16 or fp16 and contiguous.
#ifndef MEGATRON_OPS_DROPOUT_H_
#define MEGATRON_OPS_DROPOUT_H_

#include "megatron/base/philox.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct Dropout {
  float probability = 0;  // 0: nothing is dropped and the rest is not read
  PhiloxKey key;
  Tensor sample_T;           // int64: number of each token's sample in training order
  Tensor position_T;         // int32: each token's position in its sample
  int64_t first_column = 0;  // global index of this rank's column 0 (in attention: its head 0)
};

// out = residual + dropout(x + bias). An empty bias or residual counts as zero; out may be x's or
// residual's memory.
void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH);

// dx = mask and scale of the dropout applied to dy (=; dx may be dy's memory). dbias (fp32) +=
// column sums of dx, unless it is empty.
void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H);

// out[t, c] = x[t, c] * (1 + eps * (2 u - 1)), where u in (0, 1] is the element's random word as a
// number. All is fp32; out may be x's memory. The probability of `random` is not read.
void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH);

// Helpers of other ops that apply dropout.

// CHECK-fails unless the probability is in [0, 1) and, above 0, the tensors describe `tokens`
// tokens.
void CheckDropout(const Stream& stream, const Dropout& dropout, int64_t tokens);
// The dropout of one row, as the CPU's kernels take it (cpu/row_kernels.h).
struct RowDropout;
RowDropout DropoutOfRow(const Dropout& dropout, int64_t row);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_DROPOUT_H_
