// Dropout whose mask depends on logical places only, and the residual sum that it is fused into.
//
// Whether an element is dropped is a function of (key, sample ordinal, position in the sample,
// column in the *global* row): the uniform word is word (c % 4) of Philox(key; {sample low, sample
// high, position, c / 4}) for column c, and the element is kept when that word >= probability *
// 2^32 (rounded down). Kept elements are scaled by 1 / (1 - probability). So a run gives the same
// masks on any layout, and backward needs no saved mask.
//
// Legend: T tokens, H columns. Activations fp32, bf16 or fp16, contiguous.
#ifndef MEGATRON_OPS_DROPOUT_H_
#define MEGATRON_OPS_DROPOUT_H_

#include "megatron/base/philox.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct Dropout {
  float probability = 0;  // 0: nothing is dropped and the rest is not read
  PhiloxKey key;
  Tensor sample_T;           // int64: ordinal of each token's sample in training order
  Tensor position_T;         // int32: its position in the sample
  int64_t first_column = 0;  // global index of this rank's column 0 (for attention: of its head 0)
};

// out = residual + dropout(x + bias). An empty bias or residual counts as zero; out may be x's or
// residual's memory.
void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH);

// dx = dropout's mask and scale applied to dy (=; may be dy's memory); dbias (fp32) += column sums
// of dx, unless empty.
void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H);

// out[t, c] = x[t, c] * (1 + eps * (2 u - 1)) (fp32; out may be x's memory), u in (0, 1] being the
// element's uniform word as a number. Of `random` all but the probability is read.
void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH);

// For ops that have dropout inside.

// CHECK-fails unless the probability is in [0, 1) and, above 0, the tensors describe `tokens`
// tokens.
void CheckDropout(const Stream& stream, const Dropout& dropout, int64_t tokens);
// What the CPU's kernels need to know about one row (cpu/row_kernels.h).
struct RowDropout;
RowDropout DropoutOfRow(const Dropout& dropout, int64_t row);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_DROPOUT_H_
