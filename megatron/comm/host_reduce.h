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
#include "megatron/comm/collective_routes.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

// Elements [begin, end) of each output = the reduction of these elements of all inputs. An output
// may be an input, but may not overlap one otherwise.
void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, int64_t begin,
                  int64_t end, absl::Span<void* const> outputs);

// The same in the order of `steps`, whose ranks are indices of inputs.
void ReduceOnHost(DType dtype, ReduceOp op, absl::Span<const void* const> inputs,
                  absl::Span<const PartialSumStep> steps, int64_t begin, int64_t end,
                  absl::Span<void* const> outputs);

// The dtype in which partial results travel: fp32 for bf16 and fp16, else the dtype itself.
DType PartialDType(DType dtype);
// Elements [0, count) of `partial` = those of `values`, and the reverse, which rounds.
void ToPartial(DType dtype, const void* values, int64_t count, void* partial);
void FromPartial(DType dtype, const void* partial, int64_t count, void* values);

}  // namespace megatron

#endif  // MEGATRON_COMM_HOST_REDUCE_H_
