// Products of the emulated device, by the CPU's matrix product.
#include <cstring>

#include "glog/logging.h"
#include "megatron/ops/cpu/gemm.h"
#include "megatron/ops/cuda/emulation/block.h"
#include "megatron/ops/cuda/gemm/planned_product.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron::ops::cuda {
namespace {

// The transposed matrix of a column-major one: rows are where that has columns.
GemmOperand Rows(const void* data, int64_t leading) { return {data, leading, 1}; }
GemmOperand Columns(const void* data, int64_t leading) { return {data, 1, leading}; }

ops::Gemm RowMajor(const Gemm& gemm, const GemmOperands& at) {
  ops::Gemm out;
  out.m = gemm.n;
  out.n = gemm.m;
  out.k = gemm.k;
  out.dtype = gemm.in;
  out.a = gemm.transpose_b ? Columns(at.b, gemm.ldb) : Rows(at.b, gemm.ldb);
  out.b = gemm.transpose_a ? Columns(at.a, gemm.lda) : Rows(at.a, gemm.lda);
  out.epilogue = gemm.accumulate ? ops::GemmEpilogue::kAccumulate : ops::GemmEpilogue::kStore;
  out.bias = at.bias;
  out.c = {at.c, gemm.ldc};
  return out;
}

}  // namespace

void RunPlanned(const Stream& stream, const LinearGemm& linear) {
  CHECK(RunPlannedIfPossible(stream, linear)) << linear.gemm;
}

bool RunPlannedIfPossible(const Stream& stream, const LinearGemm& linear) {
  const Gemm& gemm = linear.gemm;
  const GemmOperands& at = linear.operands;
  CHECK(gemm.in != DType::kUInt8) << gemm;
  if (gemm.m == 0 || gemm.n == 0) return true;
  ops::Gemm product = RowMajor(gemm, at);
  if (gemm.epilogue == GemmEpilogue::kBiasGradient) {
    product.row_sums = static_cast<float*>(at.sums);
    std::memset(at.sums, 0, static_cast<size_t>(gemm.n) * sizeof(float));
  } else {
    CHECK(gemm.epilogue == GemmEpilogue::kBias) << gemm;
  }
  emulation::RunLibraryKernel([&] { RunGemm(EmulatingStream(stream).pool(), product); });
  return true;
}

}  // namespace megatron::ops::cuda
