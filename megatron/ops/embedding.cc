#include "megatron/ops/embedding.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/embedding_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// The smallest number of columns per thread: a cache line of the gradient of the table.
constexpr int64_t kColumns = 16;

void CheckOperands(const Stream& stream, const Tensor& ids_T, const Tensor& activation_TH,
                   const Tensor& table_VH, DType table_dtype) {
  CHECK_EQ(table_VH.rank(), 2) << table_VH;
  CHECK_EQ(ids_T.rank(), 1) << ids_T;
  CheckFloating(activation_TH);
  CheckContiguous(stream, ids_T, DType::kInt32, ids_T.shape());
  CheckContiguous(stream, activation_TH, activation_TH.dtype(), {ids_T.dim(0), table_VH.dim(1)});
  CheckContiguous(stream, table_VH, table_dtype, table_VH.shape());
}

EmbeddingLookup MakeLookup(const Tensor& ids_T, const Tensor& activation_TH, const Tensor& table_VH,
                           int64_t first_row) {
  EmbeddingLookup lookup;
  lookup.dtype = activation_TH.dtype();
  lookup.ids = ids_T.data<int32_t>();
  lookup.tokens = ids_T.dim(0);
  lookup.rows = table_VH.dim(0);
  lookup.columns = table_VH.dim(1);
  lookup.first_row = first_row;
  return lookup;
}

}  // namespace

void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH) {
  CheckOperands(stream, ids_T, y_TH, table_VH, y_TH.dtype());
  if (RunsOnCuda(stream)) {
    return OnCuda<EmbeddingForward>(stream, ids_T, table_VH, first_row, accumulate, y_TH);
  }
  if (!RunsOnCpu(stream)) return;
  const EmbeddingLookup lookup = MakeLookup(ids_T, y_TH, table_VH, first_row);
  const auto kernel = ActiveIsa() == CpuIsa::kAvx512 ? avx512::EmbeddingForwardTokens
                                                     : avx2::EmbeddingForwardTokens;
  stream.pool()->ParallelFor(lookup.tokens, [&](int64_t begin, int64_t end) {
    kernel(lookup, table_VH.raw(), accumulate, y_TH.raw(), begin, end);
  });
}

void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH) {
  CheckOperands(stream, ids_T, dy_TH, dtable_VH, DType::kFloat32);
  if (RunsOnCuda(stream)) {
    return OnCuda<EmbeddingBackward>(stream, ids_T, dy_TH, first_row, dtable_VH);
  }
  if (!RunsOnCpu(stream)) return;
  const EmbeddingLookup lookup = MakeLookup(ids_T, dy_TH, dtable_VH, first_row);
  const auto kernel = ActiveIsa() == CpuIsa::kAvx512 ? avx512::EmbeddingBackwardColumns
                                                     : avx2::EmbeddingBackwardColumns;
  stream.pool()->ParallelFor((lookup.columns + kColumns - 1) / kColumns,
                             [&](int64_t begin, int64_t end) {
                               kernel(lookup, dy_TH.raw(), dtable_VH.data<float>(),
                                      begin * kColumns, std::min(end * kColumns, lookup.columns));
                             });
}

}  // namespace megatron::ops
