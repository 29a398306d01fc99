// Matrix products of 8-bit floats. Where both matrices have one scale: sums of exact products in
// fp32, multiplied once by both inverse scales. Where parts have scales: sums in fp32 of the
// products of values, each of which is rounded to fp32 (exact, if scales are powers of two).
//
// Legend: M and N rows of the operands, K the summed dim. N and K are multiples of
// kFloat8Alignment. At least one of the two formats is E4M3. Either both operands have one scale or
// neither has. On CUDA not both may have kBlocks, and M must be a multiple of 4 where neither has
// one scale.
#ifndef MEGATRON_OPS_FLOAT8_PRODUCT_H_
#define MEGATRON_OPS_FLOAT8_PRODUCT_H_

#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// c = a b^T + bias. c is fp32, bf16 or fp16 (on CUDA: bf16 or fp16). The bias has the dtype of c;
// an empty bias means none.
void Float8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                   const Tensor& bias_N, const Tensor& c_MN);

// c (fp32) += a b^T.
void AddFloat8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                      const Tensor& c_MN);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_PRODUCT_H_
