// The forward operators of tensor_parallel.h in pieces, so that the product of one piece runs while
// another is communicated (Megatron's tp_comm_overlap). A product's rows do not depend on each
// other, and every sum over ranks is formed as for all rows at once: the bits are the same.
//
// Legend: T tokens, H hidden size.
#ifndef MEGATRON_LAYERS_TENSOR_OVERLAP_H_
#define MEGATRON_LAYERS_TENSOR_OVERLAP_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/layers/layer_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Calls product(rows, begin) for the rows x of each rank, under sequence parallelism: `rows` are
// rows `begin` and following of all. This rank's are first, while the others' are on their way
// already, and each of the others follows when its rows have arrived. Takes memory of ctx.scratch,
// where the caller's scope must hold it until all work is done.
void GatherInPieces(const LayerContext& ctx, const Tensor& x_TH,
                    absl::FunctionRef<void(const Tensor& rows_TH, int64_t begin)> product);

// Writes to y the sum of all ranks' summands. product(begin, end, summand) is called for pieces
// that together are all rows, and writes the summand of rows [begin, end); the sum of the pieces
// before runs meanwhile. Pieces begin at multiples of row_multiple, of all rows or of each rank's.
// Takes memory as GatherInPieces does.
void ReduceInPieces(
    const LayerContext& ctx, const Tensor& y_TH, int64_t row_multiple,
    absl::FunctionRef<void(int64_t begin, int64_t end, const Tensor& summand_TH)> product);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TENSOR_OVERLAP_H_
