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

// Where the parts of a tensor's rows lie.
class PartsOfRows {
 public:
  explicit PartsOfRows(const Tensor& x_TGS) {
    if (x_TGS.empty()) return;
    const int64_t size = SizeOf(x_TGS.dtype());
    data_ = static_cast<char*>(x_TGS.raw());
    of_token_ = x_TGS.stride(0) * size;
    of_group_ = x_TGS.stride(1) * size;
    if (x_TGS.rank() == 3) return;
    group_parts_ = x_TGS.dim(2);
    of_part_ = x_TGS.stride(2) * size;
  }

  void* At(int64_t token, int64_t part) const {
    if (data_ == nullptr) return nullptr;
    return data_ + token * of_token_ + part / group_parts_ * of_group_ +
           part % group_parts_ * of_part_;
  }

 private:
  char* data_ = nullptr;
  int64_t of_token_ = 0, of_group_ = 0, of_part_ = 0, group_parts_ = 1;  // strides in bytes
};

// What all parts have in common.
class PartMaker {
 public:
  PartMaker(const GatedNorm& norm, const GatedNormInputs& in)
      : x_(in.x_TGS), z_(in.z_TGS), gamma_(static_cast<const char*>(in.gamma_GS.raw())) {
    common_.dtype = in.x_TGS.dtype();
    common_.width = in.x_TGS.dim(-1);
    common_.epsilon = norm.epsilon;
    common_.norm_before_gate = norm.norm_before_gate;
    common_.columns = norm.squares_T.empty() ? common_.width : norm.columns;
    if (!norm.squares_T.empty()) squares_ = norm.squares_T.data<float>();
    if (!norm.products_T.empty()) products_ = norm.products_T.data<float>();
    if (in.gamma_GS.dim(0) > 1) of_gamma_ = common_.width * SizeOf(common_.dtype);
  }

  GatedPart Make(int64_t token, int64_t part) const {
    GatedPart made = common_;
    made.x = x_.At(token, part);
    made.z = z_.At(token, part);
    made.gamma = gamma_ + part * of_gamma_;
    made.scratch = Workspace(WorkspaceKind::kPrivate, made.width);
    if (squares_ != nullptr) made.squares = squares_ + token;
    if (products_ != nullptr) made.products = products_ + token;
    return made;
  }

 private:
  GatedPart common_;
  PartsOfRows x_, z_;
  const char* gamma_;
  int64_t of_gamma_ = 0;  // bytes from a part's gamma to the next one's, if each has its own
  const float *squares_ = nullptr, *products_ = nullptr;
};

// Calls run(make(token, part)) for the parts of a token. Each knows the next one; behind a token's
// last part that is the next token's first one.
template <typename Make>
void RunParts(int64_t token, int64_t tokens, int64_t parts, const Make& make,
              void (*run)(const GatedPart& part)) {
  GatedPart part = make(token, 0);
  for (int64_t i = 0; i < parts; ++i) {
    const bool in_token = i + 1 < parts;
    GatedPart next;
    if (in_token || token + 1 < tokens) {
      next = in_token ? make(token, i + 1) : make(token + 1, 0);
      part.next = &next;
    }
    run(part);
    part = next;
  }
}

// Writes for each row the sum of what the kernel returns for its parts.
void SumParts(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
              const Tensor& dy_TGS, float (*kernel)(const GatedPart& part), const Tensor& sums_T) {
  const int64_t parts = PartsOf(in.x_TGS);
  const PartMaker maker(norm, in);
  const PartsOfRows dy(dy_TGS);
  float* const sums = sums_T.data<float>();
  ParallelRows(stream.pool(), in.x_TGS.dim(0), parts * in.x_TGS.dim(-1), [&](int64_t token) {
    float sum = 0;
    for (int64_t i = 0; i < parts; ++i) {
      GatedPart part = maker.Make(token, i);
      part.dy = dy.At(token, i);
      sum += kernel(part);
    }
    sums[token] = sum;
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
  const PartMaker maker(norm, in);
  const PartsOfRows y(y_TGS);
  const int64_t tokens = in.x_TGS.dim(0);
  const auto make = [&](int64_t token, int64_t i) {
    GatedPart part = maker.Make(token, i);
    part.y = y.At(token, i);
    return part;
  };
  ParallelRows(stream.pool(), tokens, parts * in.x_TGS.dim(-1),
               [&](int64_t token) { RunParts(token, tokens, parts, make, kernel); });
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
  const PartMaker maker(norm, in);
  const PartsOfRows dy(dy_TGS), dx(gradients.x_TGS), dz(gradients.z_TGS);
  const int64_t tokens = in.x_TGS.dim(0);
  ParallelRowsWithSums(stream.pool(), tokens,
                       {in.gamma_GS.numel(), {gradients.gamma_GS.data<float>(), nullptr}},
                       [&](int64_t row, float* sums) {
                         const auto make = [&](int64_t token, int64_t i) {
                           GatedPart part = maker.Make(token, i);
                           part.dy = dy.At(token, i);
                           part.dx = dx.At(token, i);
                           part.dz = dz.At(token, i);
                           part.dgamma = sums + (shared ? 0 : i * width);
                           return part;
                         };
                         RunParts(row, tokens, parts, make, kernel);
                       });
}

}  // namespace megatron::ops
