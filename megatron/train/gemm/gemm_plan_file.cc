#include "megatron/train/gemm/gemm_plan_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/text_proto.h"
#include "megatron/train/gemm/gemm_plans.pb.h"

namespace megatron {
namespace {

using ops::cuda::Gemm;
using ops::cuda::GemmEpilogue;
using ops::cuda::GemmKernel;
using ops::cuda::GemmPlace;
using ops::cuda::GemmPlan;
using train::GemmPlanFile;

constexpr int64_t kMostBytes = int64_t{16} << 20;
constexpr char kHeader[] =
    "# Kernels of matrix products, chosen by time (system.time_gemm_kernels).\n";

// The file's epilogues have the same numbers as the program's.
static_assert(static_cast<int>(GemmEpilogue::kBias) == GemmPlanFile::BIAS &&
                  static_cast<int>(GemmEpilogue::kGelu) == GemmPlanFile::GELU &&
                  static_cast<int>(GemmEpilogue::kGeluSlope) == GemmPlanFile::GELU_SLOPE &&
                  static_cast<int>(GemmEpilogue::kBiasGradient) == GemmPlanFile::BIAS_GRADIENT,
              "renumbered");

static_assert(static_cast<int>(Float8Scaling::kTensor) == GemmPlanFile::TENSOR &&
                  static_cast<int>(Float8Scaling::kVectors) == GemmPlanFile::VECTORS &&
                  static_cast<int>(Float8Scaling::kBlocks) == GemmPlanFile::BLOCKS,
              "renumbered");

absl::StatusOr<Gemm> ToGemm(const GemmPlanFile::Product& product) {
  Gemm gemm;
  gemm.m = product.m();
  gemm.n = product.n();
  gemm.k = product.k();
  if (!FromName(product.in(), &gemm.in) || !FromName(product.out(), &gemm.out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no dtypes: in: \"", product.in(), "\" out: \"", product.out(), "\""));
  }
  if (gemm.in == DType::kUInt8 && (!FromName(product.a_format(), &gemm.a_format) ||
                                   !FromName(product.b_format(), &gemm.b_format))) {
    return absl::InvalidArgumentError(absl::StrCat("no formats: a_format: \"", product.a_format(),
                                                   "\" b_format: \"", product.b_format(), "\""));
  }
  gemm.a_scaling = static_cast<Float8Scaling>(product.a_scaling());
  gemm.b_scaling = static_cast<Float8Scaling>(product.b_scaling());
  gemm.transpose_a = product.transpose_a();
  gemm.transpose_b = product.transpose_b();
  gemm.lda = product.lda();
  gemm.ldb = product.ldb();
  gemm.ldc = product.ldc();
  gemm.accumulate = product.accumulate();
  gemm.alignment = product.alignment();
  gemm.bias_alignment = product.bias_alignment();
  gemm.epilogue = static_cast<GemmEpilogue>(product.epilogue());
  return gemm;
}

void FromGemm(const Gemm& gemm, GemmPlanFile::Product* product) {
  product->set_m(gemm.m);
  product->set_n(gemm.n);
  product->set_k(gemm.k);
  product->set_in(Name(gemm.in));
  product->set_out(Name(gemm.out));
  if (gemm.in == DType::kUInt8) {
    product->set_a_format(Name(gemm.a_format));
    product->set_b_format(Name(gemm.b_format));
    if (gemm.a_scaling != Float8Scaling::kTensor)
      product->set_a_scaling(static_cast<GemmPlanFile::Scaling>(gemm.a_scaling));
    if (gemm.b_scaling != Float8Scaling::kTensor)
      product->set_b_scaling(static_cast<GemmPlanFile::Scaling>(gemm.b_scaling));
  }
  if (gemm.transpose_a) product->set_transpose_a(true);
  if (gemm.transpose_b) product->set_transpose_b(true);
  product->set_lda(gemm.lda);
  product->set_ldb(gemm.ldb);
  product->set_ldc(gemm.ldc);
  if (gemm.accumulate) product->set_accumulate(true);
  product->set_alignment(gemm.alignment);
  if (gemm.bias_alignment > 0) product->set_bias_alignment(gemm.bias_alignment);
  if (gemm.epilogue != GemmEpilogue::kBias)
    product->set_epilogue(static_cast<GemmPlanFile::Epilogue>(gemm.epilogue));
}

GemmKernel ToKernel(const GemmPlanFile::Kernel& in) {
  return {in.id(),      in.tile(),   in.stages(),      in.split_k(),      in.reduction(),
          in.swizzle(), in.custom(), in.inner_shape(), in.cluster_shape()};
}

void FromKernel(const GemmKernel& kernel, GemmPlanFile::Kernel* out) {
  out->set_id(kernel.id);
  out->set_tile(kernel.tile);
  out->set_stages(kernel.stages);
  out->set_split_k(kernel.split_k);
  out->set_reduction(kernel.reduction);
  out->set_swizzle(kernel.swizzle);
  out->set_custom(kernel.custom);
  out->set_inner_shape(kernel.inner_shape);
  out->set_cluster_shape(kernel.cluster_shape);
}

}  // namespace

absl::StatusOr<std::vector<GemmPlan>> ParseGemmPlans(absl::string_view text) {
  GemmPlanFile file;
  MEGATRON_RETURN_IF_ERROR(ParseTextProto(text, &file));
  std::vector<GemmPlan> plans;
  for (const GemmPlanFile::Place& place : file.place()) {
    for (const GemmPlanFile::Plan& plan : place.plan()) {
      MEGATRON_ASSIGN_OR_RETURN(const Gemm gemm, ToGemm(plan.product()),
                                _ << "plan " << plans.size() + 1);
      plans.push_back({{place.gpu(), place.cublaslt_version()},
                       gemm,
                       ToKernel(plan.kernel()),
                       plan.microseconds(),
                       plan.first_microseconds()});
    }
  }
  return plans;
}

std::string GemmPlansText(absl::Span<const GemmPlan> plans) {
  std::vector<GemmPlan> sorted(plans.begin(), plans.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const GemmPlan& x, const GemmPlan& y) {
    return std::tie(x.place, x.gemm) < std::tie(y.place, y.gemm);
  });
  GemmPlanFile file;
  GemmPlanFile::Place* place = nullptr;
  for (const GemmPlan& plan : sorted) {
    if (place == nullptr || place->gpu() != plan.place.gpu ||
        place->cublaslt_version() != plan.place.cublaslt_version) {
      place = file.add_place();
      place->set_gpu(plan.place.gpu);
      place->set_cublaslt_version(plan.place.cublaslt_version);
    }
    GemmPlanFile::Plan* const out = place->add_plan();
    FromGemm(plan.gemm, out->mutable_product());
    FromKernel(plan.kernel, out->mutable_kernel());
    out->set_microseconds(plan.microseconds);
    out->set_first_microseconds(plan.first_microseconds);
  }
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  CHECK(printer.PrintToString(file, &text));
  return kHeader + text;
}

absl::StatusOr<std::vector<GemmPlan>> ReadGemmPlans(FileSystem& fs, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMostBytes));
  MEGATRON_ASSIGN_OR_RETURN(std::vector<GemmPlan> plans, ParseGemmPlans(text),
                            _ << path << " holds no plans of matrix products");
  return plans;
}

absl::Status WriteGemmPlans(FileSystem& fs, const std::string& path,
                            absl::Span<const GemmPlan> plans) {
  return WriteFileAtomically(fs, path, GemmPlansText(plans));
}

}  // namespace megatron
