// Codes of one bit: the sign of each element, with one scale for all of them. Legend: N elements,
// a multiple of 8. All tensors are contiguous; values and scales are fp32, codes bytes. These ops
// run on the CPU.
#ifndef MEGATRON_OPS_COMPRESSION_SIGN_CODES_H_
#define MEGATRON_OPS_COMPRESSION_SIGN_CODES_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// scale = ‖x‖ / √N, with the L2 norm; codes = 1 where x >= 0 and 0 elsewhere, of which the first
// is a byte's highest bit. x becomes what codes lack of it: x - scale where the code is 1, x +
// scale elsewhere. A NaN or an infinity makes the scale, and so all of x, not finite.
void EncodeSigns(const Stream& stream, const Tensor& x_N, const Tensor& codes,
                 const Tensor& scale_1);

// x += scale / divisor where the code is 1, x -= scale / divisor elsewhere. The first code of x is
// code `first` of the first byte; the last byte may have more codes than x has elements.
void AddSigns(const Stream& stream, const Tensor& codes, const Tensor& scale_1, float divisor,
              const Tensor& x_N, int first = 0);

// x = 0 where `other` is 0.
void ZeroWhereZero(const Stream& stream, const Tensor& other_N, const Tensor& x_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_COMPRESSION_SIGN_CODES_H_
