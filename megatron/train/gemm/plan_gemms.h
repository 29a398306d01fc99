// Prepares the choice of kernels for a run's matrix products from its configuration.
#ifndef MEGATRON_TRAIN_GEMM_PLAN_GEMMS_H_
#define MEGATRON_TRAIN_GEMM_PLAN_GEMMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Gives the planner the plans of options.plan_file; with options.time_kernels the file is written
// now, to find out whether it can be, and again with each new plan. Returns the plans as text,
// which must be the same on all ranks. Returns kNotFound if there is no file and none will be
// written. Products compute beside what the options decide (choose_epilogues.h), and nothing where
// they do not.
//
// `fs` must outlive the planner's use.
absl::StatusOr<std::string> PlanGemms(FileSystem& fs, const GemmOptions& options,
                                      ops::cuda::GemmPlanner* planner);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_GEMM_PLAN_GEMMS_H_
