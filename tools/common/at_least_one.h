// Checks flags that count something of which there must be one.
#ifndef MEGATRON_TOOLS_COMMON_AT_LEAST_ONE_H_
#define MEGATRON_TOOLS_COMMON_AT_LEAST_ONE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megatron {

// kInvalidArgument names the first of the flags ("max_batch") whose value is less than 1.
absl::Status CheckAtLeastOne(const std::vector<std::pair<absl::string_view, int64_t>>& flags);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_AT_LEAST_ONE_H_
