#include "megatron/train/gemm/plan_gemms.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/gemm/gemm_plan_file.h"

namespace megatron {
namespace {

using ops::cuda::GemmPlan;

ops::cuda::FuseGelu ToFuseGelu(config::FuseGelu::Type type) {
  switch (type) {
    case config::FuseGelu::backward:
      return ops::cuda::FuseGelu::kBackward;
    case config::FuseGelu::both:
      return ops::cuda::FuseGelu::kBoth;
    case config::FuseGelu::auto_:
    case config::FuseGelu::none:
      break;
  }
  return ops::cuda::FuseGelu::kNone;
}

absl::StatusOr<std::vector<GemmPlan>> ReadPlans(FileSystem& fs, const GemmOptions& options) {
  if (options.plan_file.empty()) return std::vector<GemmPlan>();
  absl::StatusOr<std::vector<GemmPlan>> plans = ReadGemmPlans(fs, options.plan_file);
  if (plans.ok() || plans.status().code() != absl::StatusCode::kNotFound) return plans;
  if (options.time_kernels) return std::vector<GemmPlan>();
  return absl::NotFoundError(
      absl::StrCat("system.gemm_plan_file = ", options.plan_file,
                   ": there is no such file; a run with system.time_gemm_kernels: true writes it"));
}

}  // namespace

absl::StatusOr<std::string> PlanGemms(FileSystem& fs, const GemmOptions& options,
                                      ops::cuda::GemmPlanner* planner) {
  ops::cuda::GemmPlanning planning;
  planning.time_products = options.time_kernels;
  planning.fuse_bias_gradients = options.fuse_bias_gradients.value_or(false);
  planning.fuse_gelu = ToFuseGelu(options.fuse_gelu);
  MEGATRON_ASSIGN_OR_RETURN(planning.plans, ReadPlans(fs, options));
  std::string text = GemmPlansText(planning.plans);
  if (options.time_kernels && !options.plan_file.empty()) {
    MEGATRON_RETURN_IF_ERROR(WriteGemmPlans(fs, options.plan_file, planning.plans));
    planning.on_new_plan = [&fs, path = options.plan_file](absl::Span<const GemmPlan> plans) {
      const absl::Status written = WriteGemmPlans(fs, path, plans);
      LOG_IF(WARNING, !written.ok())
          << "system.gemm_plan_file could not be written: " << written.message()
          << "; training continues, and the next run times these products again";
    };
  }
  planner->Use(std::move(planning));
  return text;
}

}  // namespace megatron
