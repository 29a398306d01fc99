// Products of the emulated device, by the CPU's matrix product.
#include "megatron/ops/cuda/gemm/emulated_product.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/cpu/gemm.h"
#include "megatron/ops/cuda/emulation/block.h"
#include "megatron/ops/cuda/emulation/library_accesses.h"
#include "megatron/ops/cuda/gemm/planned_product.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron::ops::cuda {
namespace {

std::atomic<bool> refuses_epilogues{false};
std::atomic<int64_t> refused{0};

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

float ReadAs(DType dtype, const void* data, int64_t i) {
  if (dtype == DType::kBFloat16) return ToFloat(static_cast<const BFloat16*>(data)[i]);
  if (dtype == DType::kFloat16) return ToFloat(static_cast<const Float16*>(data)[i]);
  return static_cast<const float*>(data)[i];
}

void WriteAs(DType dtype, void* data, int64_t i, float x) {
  if (dtype == DType::kBFloat16) {
    static_cast<BFloat16*>(data)[i] = ToBFloat16(x);
  } else if (dtype == DType::kFloat16) {
    static_cast<Float16*>(data)[i] = ToFloat16(x);
  } else {
    static_cast<float*>(data)[i] = x;
  }
}

float Gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}

float GeluSlope(float x) {
  const float tanh = std::tanh(0.797884561f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + tanh) +
         0.5f * x * (1 - tanh * tanh) * 0.797884561f * (1 + 3 * 0.044715f * x * x);
}

// The elements of the product's result, row-major and not rounded to its dtype.
std::vector<float> UnroundedProduct(ThreadPool* pool, const ops::Gemm& product) {
  ops::Gemm wide = product;
  const auto widen = [&](const GemmOperand& from, int64_t rows, int64_t columns,
                         std::vector<float>* to) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        to->push_back(
            ReadAs(product.dtype, from.data, row * from.row_stride + column * from.column_stride));
      }
    }
    return GemmOperand{to->data(), columns, 1};
  };
  std::vector<float> a, b, bias, c(static_cast<size_t>(product.m * product.n));
  wide.dtype = DType::kFloat32;
  wide.a = widen(product.a, product.m, product.k, &a);
  wide.b = widen(product.b, product.k, product.n, &b);
  if (product.bias != nullptr) {
    widen({product.bias, product.n, 1}, 1, product.n, &bias);
    wide.bias = bias.data();
  }
  wide.c = {c.data(), product.n};
  RunGemm(pool, wide);
  return c;
}

// cuBLASLt's GELU, by its documentation.
void RunWithGelu(ThreadPool* pool, const Gemm& gemm, const GemmOperands& at,
                 const ops::Gemm& product) {
  const bool forward = gemm.epilogue == GemmEpilogue::kGelu;
  const std::vector<float> c = UnroundedProduct(pool, product);
  std::vector<float> sums(static_cast<size_t>(product.n));
  for (int64_t row = 0; row < product.m; ++row) {
    for (int64_t column = 0; column < product.n; ++column) {
      const int64_t i = row * product.n + column;  // the rows of aux follow each other
      float x = c[static_cast<size_t>(i)];
      if (forward) {
        WriteAs(gemm.out, at.aux, i, x);
        x = Gelu(x);
      } else {
        x *= GeluSlope(ReadAs(gemm.out, at.aux, i));
        sums[static_cast<size_t>(column)] += x;
      }
      WriteAs(gemm.out, at.c, row * gemm.ldc + column, x);
    }
  }
  emulation::NoteLibraryAccess(at.aux, static_cast<size_t>(gemm.m * gemm.n * SizeOf(gemm.out)),
                               forward);
  if (at.sums == nullptr) return;
  for (int64_t i = 0; i < product.n; ++i)
    WriteAs(gemm.out, at.sums, i, sums[static_cast<size_t>(i)]);
  emulation::NoteLibraryAccess(at.sums, static_cast<size_t>(gemm.m * SizeOf(gemm.out)), true);
}

}  // namespace

void RefuseEmulatedEpilogues(bool refuse) { refuses_epilogues = refuse; }

int64_t RefusedEmulatedProducts() { return refused; }

void RunPlanned(const Stream& stream, const LinearGemm& linear) {
  CHECK(RunPlannedIfPossible(stream, linear)) << linear.gemm;
}

bool RunPlannedIfPossible(const Stream& stream, const LinearGemm& linear) {
  const Gemm& gemm = linear.gemm;
  const GemmOperands& at = linear.operands;
  CHECK(gemm.in != DType::kUInt8) << gemm;
  if (gemm.m == 0 || gemm.n == 0) return true;
  if (refuses_epilogues && gemm.epilogue != GemmEpilogue::kBias) {
    ++refused;
    return false;
  }
  ops::Gemm product = RowMajor(gemm, at);
  if (gemm.epilogue == GemmEpilogue::kBiasGradient) {
    product.row_sums = static_cast<float*>(at.sums);
    std::memset(at.sums, 0, static_cast<size_t>(gemm.n) * sizeof(float));
  }
  ThreadPool* const pool = EmulatingStream(stream).pool();
  const bool gelu =
      gemm.epilogue == GemmEpilogue::kGelu || gemm.epilogue == GemmEpilogue::kGeluSlope;
  emulation::RunLibraryKernel(
      [&] { gelu ? RunWithGelu(pool, gemm, at, product) : RunGemm(pool, product); });
  return true;
}

}  // namespace megatron::ops::cuda
