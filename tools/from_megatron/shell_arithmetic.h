// Computes the integer expressions of shell scripts, as in $((GPUS * NODES)).
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_SHELL_ARITHMETIC_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_SHELL_ARITHMETIC_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Takes decimal numbers, + - * / % (), and names, whose values `lookup` returns. Returns
// kInvalidArgument for everything else, for overflow and for division by zero, and kNotFound if
// `lookup` returns it.
absl::StatusOr<int64_t> ComputeShellArithmetic(
    absl::string_view expression,
    absl::FunctionRef<absl::StatusOr<int64_t>(absl::string_view name)> lookup);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_SHELL_ARITHMETIC_H_
