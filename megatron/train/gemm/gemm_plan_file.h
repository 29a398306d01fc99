// Reads and writes the file that keeps the kernels chosen for matrix products
// (system.gemm_plan_file), gemm_plans.proto as text.
#ifndef MEGATRON_TRAIN_GEMM_GEMM_PLAN_FILE_H_
#define MEGATRON_TRAIN_GEMM_GEMM_PLAN_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/ops/cuda/gemm/gemm.h"

namespace megatron {

// Returns kInvalidArgument with line and column, or with the product, if the text is not such a
// file.
absl::StatusOr<std::vector<ops::cuda::GemmPlan>> ParseGemmPlans(absl::string_view text);
// Returns the plans as text. The same plans always give the same text; ParseGemmPlans reads it.
std::string GemmPlansText(absl::Span<const ops::cuda::GemmPlan> plans);

// Returns kNotFound if there is no file yet.
absl::StatusOr<std::vector<ops::cuda::GemmPlan>> ReadGemmPlans(FileSystem& fs,
                                                               const std::string& path);
absl::Status WriteGemmPlans(FileSystem& fs, const std::string& path,
                            absl::Span<const ops::cuda::GemmPlan> plans);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_GEMM_GEMM_PLAN_FILE_H_
