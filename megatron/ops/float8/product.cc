#include "megatron/ops/float8/product.h"

#include <array>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/gemm.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

bool HasOneScale(const Float8Matrix& matrix) { return matrix.scaling == Float8Scaling::kTensor; }

void CheckMatrix(const Stream& stream, const Float8Matrix& matrix, int64_t rows, int64_t columns) {
  CheckContiguous(stream, matrix.codes, DType::kUInt8, {rows, columns});
  CheckContiguous(stream, matrix.inverse_scales, DType::kFloat32,
                  Float8ScalesShape(matrix.scaling, rows, columns));
}

void CheckProduct(const Stream& stream, const Float8Matrix& a, const Float8Matrix& b,
                  const Tensor& c) {
  const int64_t m = c.dim(0), n = c.dim(1), k = a.codes.dim(1);
  CHECK(n % kFloat8Alignment == 0 && k % kFloat8Alignment == 0) << n << " " << k;
  CHECK(a.format == Float8Format::kE4M3 || b.format == Float8Format::kE4M3);
  CHECK_EQ(HasOneScale(a), HasOneScale(b));
  CheckMatrix(stream, a, m, k);
  CheckMatrix(stream, b, n, k);
  CheckContiguous(stream, c, c.dtype(), {m, n});
}

template <typename T>
T FromFloat(float value);
template <>
float FromFloat<float>(float value) {
  return value;
}
template <>
BFloat16 FromFloat<BFloat16>(float value) {
  return ToBFloat16(value);
}
template <>
Float16 FromFloat<Float16>(float value) {
  return ToFloat16(value);
}

// Decodes the codes into values, which every dtype can represent.
template <typename T>
void Decode(const Stream& stream, const Float8Matrix& matrix, T* values) {
  std::array<T, 256> value_of;
  for (size_t code = 0; code < value_of.size(); ++code)
    value_of[code] = FromFloat<T>(Float8ToFloat(matrix.format, static_cast<uint8_t>(code)));
  const uint8_t* const codes = matrix.codes.data<uint8_t>();
  ParallelElements(stream.pool(), matrix.codes.numel(), kElementGrain,
                   [&](int64_t begin, int64_t count) {
                     for (int64_t i = begin; i < begin + count; ++i) values[i] = value_of[codes[i]];
                   });
}

// Runs the product `gemm`, of which the caller has filled in the rest, on operands converted to T.
template <typename T>
void Run(const Stream& stream, const Float8Matrix& a, const Float8Matrix& b, Gemm gemm) {
  gemm.k = a.codes.dim(1);
  const int64_t count_a = gemm.m * gemm.k, count = count_a + gemm.n * gemm.k;
  T* const values = reinterpret_cast<T*>(Workspace(
      WorkspaceKind::kShared,
      (count * static_cast<int64_t>(sizeof(T)) + 3) / static_cast<int64_t>(sizeof(float))));
  Decode(stream, a, values);
  Decode(stream, b, values + count_a);
  gemm.dtype = DTypeOf<T>::value;
  gemm.a = {values, gemm.k, 1};
  gemm.b = {values + count_a, 1, gemm.k};
  gemm.scale = *a.inverse_scales.data<float>() * *b.inverse_scales.data<float>();
  RunGemm(stream.pool(), gemm);
}

// Writes the values of the codes with the scales of their parts.
void DecodeParts(const Stream& stream, const Float8Matrix& matrix, float* values) {
  std::array<float, 256> value_of;
  for (size_t code = 0; code < value_of.size(); ++code)
    value_of[code] = Float8ToFloat(matrix.format, static_cast<uint8_t>(code));
  const int64_t columns = matrix.codes.dim(1), pitch = matrix.inverse_scales.dim(1);
  const bool vectors = matrix.scaling == Float8Scaling::kVectors;
  const auto* const codes = matrix.codes.data<uint8_t>();
  const float* const scales = matrix.inverse_scales.data<float>();
  ParallelElements(stream.pool(), matrix.codes.dim(0), 1, [&](int64_t begin, int64_t count) {
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t block = c / kFloat8Block;
        const float scale =
            vectors ? scales[block * pitch + r] : scales[r / kFloat8Block * pitch + block];
        values[r * columns + c] = value_of[codes[r * columns + c]] * scale;
      }
    }
  });
}

// c = sums + bias.
template <typename T>
void Round(const Stream& stream, const float* sums, const Tensor& bias_N, const Tensor& c_MN) {
  const int64_t columns = c_MN.dim(1);
  const T* const bias = bias_N.empty() ? nullptr : bias_N.data<T>();
  T* const c = c_MN.data<T>();
  ParallelElements(stream.pool(), c_MN.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i)
      c[i] = FromFloat<T>(sums[i] + (bias == nullptr ? 0 : ToFloat(bias[i % columns])));
  });
}

// Runs the product of matrices that have scales for parts.
void RunParts(const Stream& stream, const Float8Matrix& a, const Float8Matrix& b,
              const Tensor& bias_N, const Tensor& c_MN, Gemm gemm) {
  gemm.k = a.codes.dim(1);
  const int64_t count_a = gemm.m * gemm.k, count_b = gemm.n * gemm.k;
  const bool rounds = c_MN.dtype() != DType::kFloat32;
  float* const values =
      Workspace(WorkspaceKind::kShared, count_a + count_b + (rounds ? c_MN.numel() : 0));
  DecodeParts(stream, a, values);
  DecodeParts(stream, b, values + count_a);
  gemm.a = {values, gemm.k, 1};
  gemm.b = {values + count_a, 1, gemm.k};
  float* const sums = values + count_a + count_b;
  if (rounds) {
    gemm.c.data = sums;
  } else {
    gemm.bias = bias_N.raw();
  }
  RunGemm(stream.pool(), gemm);
  if (c_MN.dtype() == DType::kBFloat16) Round<BFloat16>(stream, sums, bias_N, c_MN);
  if (c_MN.dtype() == DType::kFloat16) Round<Float16>(stream, sums, bias_N, c_MN);
}

Gemm ResultIn(const Tensor& c_MN) {
  Gemm gemm;
  gemm.m = c_MN.dim(0);
  gemm.n = c_MN.dim(1);
  gemm.c = {c_MN.raw(), c_MN.dim(1)};
  return gemm;
}

}  // namespace

void Float8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                   const Tensor& bias_N, const Tensor& c_MN) {
  CheckFloating(c_MN);
  CheckProduct(stream, a_MK, b_NK, c_MN);
  if (!bias_N.empty()) CheckContiguous(stream, bias_N, c_MN.dtype(), {c_MN.dim(1)});
  if (RunsOnCuda(stream)) return OnCuda<Float8Product>(stream, a_MK, b_NK, bias_N, c_MN);
  if (!RunsOnCpu(stream)) return;
  Gemm gemm = ResultIn(c_MN);
  if (!HasOneScale(a_MK)) return RunParts(stream, a_MK, b_NK, bias_N, c_MN, gemm);
  gemm.bias = bias_N.raw();
  switch (c_MN.dtype()) {
    case DType::kBFloat16:
      return Run<BFloat16>(stream, a_MK, b_NK, gemm);
    case DType::kFloat16:
      return Run<Float16>(stream, a_MK, b_NK, gemm);
    default:
      return Run<float>(stream, a_MK, b_NK, gemm);
  }
}

void AddFloat8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                      const Tensor& c_MN) {
  CHECK_EQ(c_MN.dtype(), DType::kFloat32);
  CheckProduct(stream, a_MK, b_NK, c_MN);
  if (RunsOnCuda(stream)) return OnCuda<AddFloat8Product>(stream, a_MK, b_NK, c_MN);
  if (!RunsOnCpu(stream)) return;
  Gemm gemm = ResultIn(c_MN);
  gemm.epilogue = GemmEpilogue::kAccumulate;
  if (!HasOneScale(a_MK)) return RunParts(stream, a_MK, b_NK, Tensor(), c_MN, gemm);
  Run<BFloat16>(stream, a_MK, b_NK, gemm);
}

}  // namespace megatron::ops
