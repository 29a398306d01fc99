#include "megatron/ops/gated_norm.h"

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/gated_norm_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/rows.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// The parts of a row.
int64_t PartsOf(const Tensor& x_TGS) {
  return x_TGS.rank() == 3 ? x_TGS.dim(1) : x_TGS.dim(1) * x_TGS.dim(2);
}

void CheckParts(const Stream& stream, const GatedNormInputs& in, const Tensor& x_TGS) {
  CheckTensor(stream, x_TGS, in.x_TGS.dtype(), in.x_TGS.shape());
  CHECK(x_TGS.stride(-1) == 1 || x_TGS.dim(-1) == 1) << x_TGS;
}

void CheckInputs(const Stream& stream, const GatedNormInputs& in) {
  CheckFloating(in.x_TGS);
  CHECK(in.x_TGS.rank() == 3 || in.x_TGS.rank() == 4) << in.x_TGS;
  CheckParts(stream, in, in.x_TGS);
  CheckParts(stream, in, in.z_TGS);
  const Shape& gamma = in.gamma_GS.shape();
  CHECK(gamma.rank() == 2 && (gamma[0] == 1 || gamma[0] == PartsOf(in.x_TGS))) << in.gamma_GS;
  CheckContiguous(stream, in.gamma_GS, in.x_TGS.dtype(), {gamma[0], in.x_TGS.dim(-1)});
}

void CheckSums(const Stream& stream, const GatedNormInputs& in, const Tensor& sums_T) {
  CheckContiguous(stream, sums_T, DType::kFloat32, {in.x_TGS.dim(0)});
}

void Check(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
           const Tensor& y_TGS) {
  CheckInputs(stream, in);
  CheckContiguous(stream, y_TGS, in.x_TGS.dtype(), in.x_TGS.shape());
  if (norm.squares_T.empty()) return;
  CheckSums(stream, in, norm.squares_T);
  CHECK_GE(norm.columns, PartsOf(in.x_TGS) * in.x_TGS.dim(-1));
}

void* PartOf(const Tensor& x_TGS, int64_t token, int64_t part) {
  const int64_t of_group = x_TGS.rank() == 3 ? 1 : x_TGS.dim(2);
  int64_t offset = token * x_TGS.stride(0) + part / of_group * x_TGS.stride(1);
  if (x_TGS.rank() == 4) offset += part % of_group * x_TGS.stride(2);
  return static_cast<char*>(x_TGS.raw()) + offset * SizeOf(x_TGS.dtype());
}

GatedPart MakePart(const GatedNorm& norm, const GatedNormInputs& in, int64_t token, int64_t part) {
  GatedPart made;
  made.dtype = in.x_TGS.dtype();
  made.width = in.x_TGS.dim(-1);
  made.epsilon = norm.epsilon;
  made.norm_before_gate = norm.norm_before_gate;
  made.x = PartOf(in.x_TGS, token, part);
  made.z = PartOf(in.z_TGS, token, part);
  const Tensor gamma_S = in.gamma_GS.Select(0, in.gamma_GS.dim(0) == 1 ? 0 : part);
  made.gamma = gamma_S.raw();
  made.scratch = Workspace(WorkspaceKind::kPrivate, made.width);
  const bool by_parts = norm.squares_T.empty();
  made.columns = by_parts ? made.width : norm.columns;
  if (!by_parts) made.squares = norm.squares_T.data<float>() + token;
  if (!norm.products_T.empty()) made.products = norm.products_T.data<float>() + token;
  return made;
}

// Writes for each row the sum of what the kernel returns for its parts.
void SumParts(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
              const Tensor& dy_TGS, float (*kernel)(const GatedPart& part), const Tensor& sums_T) {
  const int64_t parts = PartsOf(in.x_TGS);
  ParallelRows(stream.pool(), in.x_TGS.dim(0), parts * in.x_TGS.dim(-1), [&](int64_t token) {
    float sum = 0;
    for (int64_t i = 0; i < parts; ++i) {
      GatedPart part = MakePart(norm, in, token, i);
      if (!dy_TGS.empty()) part.dy = PartOf(dy_TGS, token, i);
      sum += kernel(part);
    }
    sums_T.data<float>()[token] = sum;
  });
}

}  // namespace

void GatedNormSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                   const Tensor& sums_T) {
  CheckInputs(stream, in);
  CheckSums(stream, in, sums_T);
  if (RunsOnCuda(stream)) return OnCuda<GatedNormSums>(stream, norm, in, sums_T);
  if (!RunsOnCpu(stream)) return;
  SumParts(stream, norm, in, Tensor(),
           ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedPartSquares : avx2::GatedPartSquares,
           sums_T);
}

void GatedNormGradientSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                           const Tensor& dy_TGS, const Tensor& sums_T) {
  CheckInputs(stream, in);
  CheckContiguous(stream, dy_TGS, in.x_TGS.dtype(), in.x_TGS.shape());
  CheckSums(stream, in, sums_T);
  if (RunsOnCuda(stream)) return OnCuda<GatedNormGradientSums>(stream, norm, in, dy_TGS, sums_T);
  if (!RunsOnCpu(stream)) return;
  SumParts(stream, norm, in, dy_TGS,
           ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedPartProducts : avx2::GatedPartProducts,
           sums_T);
}

void GatedNormForward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                      const Tensor& y_TGS) {
  Check(stream, norm, in, y_TGS);
  if (RunsOnCuda(stream)) return OnCuda<GatedNormForward>(stream, norm, in, y_TGS);
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedPartForward : avx2::GatedPartForward;
  const int64_t parts = PartsOf(in.x_TGS);
  ParallelRows(stream.pool(), in.x_TGS.dim(0), parts * in.x_TGS.dim(-1), [&](int64_t token) {
    for (int64_t i = 0; i < parts; ++i) {
      GatedPart part = MakePart(norm, in, token, i);
      part.y = PartOf(y_TGS, token, i);
      kernel(part);
    }
  });
}

void GatedNormBackward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                       const Tensor& dy_TGS, const GatedNormInputs& gradients) {
  Check(stream, norm, in, dy_TGS);
  CHECK_EQ(norm.products_T.empty(), norm.squares_T.empty());
  if (!norm.products_T.empty()) CheckSums(stream, in, norm.products_T);
  CheckParts(stream, in, gradients.x_TGS);
  CheckParts(stream, in, gradients.z_TGS);
  CheckContiguous(stream, gradients.gamma_GS, DType::kFloat32, in.gamma_GS.shape());
  if (RunsOnCuda(stream)) return OnCuda<GatedNormBackward>(stream, norm, in, dy_TGS, gradients);
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedPartBackward : avx2::GatedPartBackward;
  const int64_t parts = PartsOf(in.x_TGS), width = in.x_TGS.dim(-1);
  const bool shared = in.gamma_GS.dim(0) == 1;
  ParallelRowsWithSums(stream.pool(), in.x_TGS.dim(0),
                       {in.gamma_GS.numel(), {gradients.gamma_GS.data<float>(), nullptr}},
                       [&](int64_t token, float* sums) {
                         for (int64_t i = 0; i < parts; ++i) {
                           GatedPart part = MakePart(norm, in, token, i);
                           part.dy = PartOf(dy_TGS, token, i);
                           part.dx = PartOf(gradients.x_TGS, token, i);
                           part.dz = PartOf(gradients.z_TGS, token, i);
                           part.dgamma = sums + (shared ? 0 : i * width);
                           kernel(part);
                         }
                       });
}

}  // namespace megatron::ops
