// The sum, maximum or minimum of arrays in host memory, as every CPU backend computes it.
//
// Element i of the result depends on element i of the inputs alone, taken in the order given: how a
// range is cut among threads or ranks does not change a bit. Sums of bf16 and fp16 are formed in
// fp32 and rounded once; integers wrap around; a NaN in any input gives a NaN.
#ifndef MEGATRON_COMM_HOST_REDUCE_H_
#define MEGATRON_COMM_HOST_REDUCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "megatron/comm/collective.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

// Elements [begin, end) of each output = the reduction of these elements of all inputs. An output
// may be an input, but may not overlap one otherwise.
void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, int64_t begin,
                  int64_t end, absl::Span<void* const> outputs);

}  // namespace megatron

#endif  // MEGATRON_COMM_HOST_REDUCE_H_
