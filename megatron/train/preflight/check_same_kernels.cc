#include "megatron/train/preflight/check_same_kernels.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {

absl::Status CheckSameKernels(const StartingPoint& start, const std::string& kernels,
                              bool deterministic,
                              absl::FunctionRef<void(const std::string&)> warn) {
  if (start.checkpoint == nullptr || BeginsRun(start.restore) || kernels.empty())
    return absl::OkStatus();
  const absl::StatusOr<std::string> saved = start.checkpoint->String("kernels");
  // A run on the CPU records none, nor did earlier versions.
  if (!saved.ok() || *saved == kernels) return absl::OkStatus();
  const std::string differences = absl::StrJoin(
      DifferencesOf(*saved, kernels), "; ", [](std::string* out, const ConfigDifference& field) {
        absl::StrAppend(out, field.field, " saved by ", field.first, ", now ", field.other);
      });
  const std::string message =
      absl::StrCat(start.checkpoint->directory(), ": is continued with other kernels, which round ",
                   "differently: ", differences);
  if (!deterministic) {
    warn(message);
    return absl::OkStatus();
  }
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          message, "; system.deterministic_mode refuses that: set system.attention_backend, ",
          "system.gemm_plan_file, system.fuse_gelu and system.fuse_bias_gradients to have the ",
          "same kernels, or continue without it")),
      kExitConfig);
}

}  // namespace megatron
