#include "megatron/ops/bias_gradient.h"

#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/row_kernels.h"
#include "megatron/ops/cpu/rows.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {

void BiasBackward(const Stream& stream, const Tensor& dy_TO, const Tensor& dbias_O) {
  CheckFloating(dy_TO);
  const int64_t tokens = dy_TO.dim(0), columns = dy_TO.dim(1);
  CheckContiguous(stream, dy_TO, dy_TO.dtype(), {tokens, columns});
  CheckContiguous(stream, dbias_O, DType::kFloat32, {columns});
  if (RunsOnCuda(stream)) return OnCuda<BiasBackward>(stream, dy_TO, dbias_O);
  if (!RunsOnCpu(stream)) return;
  ParallelRowsWithSums(stream.pool(), tokens, {columns, {dbias_O.data<float>(), nullptr}},
                       [&](int64_t row, float* sums) {
                         // A dropout with probability 0 does not change dy.
                         void* const dy = RowOf(dy_TO, row);
                         ActiveRowKernels().dropout_backward(dy_TO.dtype(), RowDropout(), dy, dy,
                                                             sums, columns);
                       });
}

}  // namespace megatron::ops
